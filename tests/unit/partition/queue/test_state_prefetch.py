"""States are read while the messages that need them cannot run yet."""

from __future__ import annotations

from typing import Any

from sublet.runtime.partition.queue.state_prefetch import CHUNKS_MAX, READS_MAX
from sublet.runtime.protocol.frames import Kind
from sublet.statestore.contract import Outcome, StateRow
from tests.unit.partition.harness import KnownCells, Owner, make_function


def make_owner(**options: Any) -> tuple[Owner, KnownCells]:
    cells = KnownCells()
    options.setdefault("prefetch_keys_max", 1_000)
    return Owner(cells=cells, **options), cells


def busy_owner(**options: Any) -> tuple[Owner, KnownCells]:
    """Return an owner in which a message of key `busy` runs."""
    owner, cells = make_owner(**options)
    owner.arrive(1, ["busy"])
    owner.load()
    return owner, cells


def test_what_can_run_at_once_is_read_for_its_run() -> None:
    owner, _ = make_owner()

    owner.arrive(1, ["a"])

    assert [load.keys for load in owner.loads] == [["a"]]
    assert owner.fetches == []


def test_what_waits_for_a_run_is_read_meanwhile() -> None:
    owner, _ = busy_owner()
    owner.arrive(2, ["a", "busy", "b", "a"])
    assert owner.fetches == [["a", "b"]]

    owner.fetch()
    owner.finish()

    assert owner.keys_running() == [["a", "busy", "b", "a"]]
    assert owner.loads == []
    assert owner.partition.counters.prefetched == 2
    assert owner.partition.counters.prefetch_hits == 2


def test_what_waits_behind_a_read_is_read_beside_it() -> None:
    owner, _ = make_owner()
    owner.arrive(1, ["a"])

    owner.arrive(2, ["a", "b"])

    assert owner.fetches == [["b"]]


def test_a_run_waits_for_what_is_being_read_and_reads_only_the_rest() -> None:
    owner, _ = busy_owner(prefetch_keys_max=1)
    owner.arrive(2, ["a", "b"])
    assert owner.fetches == [["a"]]
    owner.finish()
    assert [load.keys for load in owner.loads] == [["b"]]

    owner.load()
    assert owner.runs == []
    owner.fetch()

    assert owner.keys_running() == [["a", "b"]]


def test_a_run_whose_own_reading_takes_longer_waits_for_that() -> None:
    owner, _ = busy_owner(prefetch_keys_max=1)
    owner.arrive(2, ["a", "b"])
    owner.finish()

    owner.fetch()
    assert owner.runs == []
    owner.load()

    assert owner.keys_running() == [["a", "b"]]


def test_a_run_that_needs_nothing_else_reads_nothing_twice() -> None:
    owner, _ = busy_owner()
    owner.arrive(2, ["a"])
    owner.finish()
    assert owner.loads == []
    assert owner.runs == []

    owner.fetch()

    assert owner.keys_running() == [["a"]]


def test_some_readings_are_under_way_at_once_and_then_one_takes_all_that_has_come() -> None:
    owner, _ = busy_owner()
    keys = [f"k{number}" for number in range(READS_MAX)]
    for number, key in enumerate(keys):
        owner.arrive(2 + number, [key])
    owner.arrive(2 + READS_MAX, ["b"])
    owner.arrive(3 + READS_MAX, ["c", "k0"])
    assert owner.fetches == [[key] for key in keys]

    owner.fetch()

    assert owner.fetches == [*([key] for key in keys[1:]), ["b", "c"]]


def test_a_run_waits_for_all_readings_that_it_needs() -> None:
    owner, _ = busy_owner()
    owner.arrive(2, ["a"])
    owner.arrive(3, ["b"])
    owner.finish()

    owner.fetch()
    assert owner.runs == []
    owner.fetch()

    assert owner.keys_running() == [["a", "b"]]


def test_a_state_that_was_changed_by_hand_meanwhile_is_not_overwritten_with_an_old_one() -> None:
    owner, cells = busy_owner()
    owner.arrive(2, ["a", "b"])
    assert owner.partition.state_editor.hold("a")
    owner.partition.state_editor.replace("a", [StateRow("a", b"", b"new", None)], "ticket", 0.0)
    owner.collect()
    cells.drop("a")  # Committed, and forgotten.

    owner.fetch([StateRow("a", b"", b"old", None), StateRow("b", b"", b"stored", None)])

    assert "a" not in cells.known
    assert "b" in cells.known


def test_what_was_read_ahead_is_not_forgotten_before_it_is_used() -> None:
    owner, cells = busy_owner()
    owner.arrive(2, ["a"])
    owner.fetch()
    cells.full = True
    owner.held = True

    owner.finish()
    owner.commit()
    assert "a" in cells.in_use

    owner.take()
    owner.finish()
    owner.commit()
    assert "a" not in cells.in_use


def test_at_most_so_many_keys_are_read_ahead() -> None:
    owner, _ = busy_owner(prefetch_keys_max=3)
    owner.arrive(2, ["a", "b"])
    owner.arrive(4, ["c", "d", "e"])
    owner.fetch()
    assert owner.fetches == [["c"]]
    owner.fetch()

    assert owner.fetches == []
    owner.finish()
    assert [load.keys for load in owner.loads] == [["d", "e"]]


def test_at_most_so_many_batches_are_looked_at() -> None:
    owner, _ = busy_owner(prefetch_keys_max=1)
    owner.arrive(2, ["a"])
    for number in range(CHUNKS_MAX + 10):
        owner.arrive(3 + number, [f"k{number}"])

    assert owner.partition._states._prefetch is not None
    assert len(owner.partition._states._prefetch.unread_chunks) == CHUNKS_MAX


def test_of_a_large_batch_the_next_run_is_read_while_the_first_one_waits_for_its_own() -> None:
    owner, _ = make_owner(prefetch_keys_max=2)
    owner.pace.size = 2

    owner.arrive(1, ["a", "b", "c", "d", "e"])

    assert [load.keys for load in owner.loads] == [["a", "b"]]
    assert owner.fetches == [["c", "d"]]


def test_where_all_states_are_in_memory_nothing_is_looked_at() -> None:
    owner, cells = busy_owner()
    cells.is_complete = True

    owner.arrive(2, ["a"])

    assert owner.fetches == []


def test_functions_without_a_state_for_each_key_read_nothing_ahead() -> None:
    for kind in ("stateful", "stateless"):
        owner, _ = make_owner(function=make_function(kind=kind))
        owner.arrive(1, ["a"])
        owner.arrive(2, ["b"])

        assert owner.fetches == []


def test_a_partition_that_has_stopped_takes_nothing_that_was_read() -> None:
    owner, cells = busy_owner()
    owner.arrive(2, ["a"])
    owner.partition.stop(Outcome.FENCED)

    owner.fetch()

    assert "a" not in cells.known


def test_runs_beside_the_loop_wait_for_what_is_being_read_too() -> None:
    owner, _ = make_owner()
    owner.pace.aside = True
    owner.held = True
    owner.arrive(1, ["a"])
    owner.take()
    owner.arrive(2, ["b"])
    owner.arrive(3, ["c"])
    owner.take()

    while owner.loads:
        owner.load()
    while owner.fetches:
        owner.fetch()

    assert sorted(key for keys in owner.keys_running() for key in keys) == ["a", "b", "c"]


def test_names_of_timers_and_sources_are_no_keys_to_be_read() -> None:
    owner, _ = busy_owner()
    owner.arrive(2, ["1.7"], kind=Kind.CANCEL_TIMER)
    owner.arrive(3, ["source"], kind=Kind.MARKER, payloads=[10])
    assert owner.fetches == []
