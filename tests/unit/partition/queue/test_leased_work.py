"""What a partition does with messages that others run: keys, order, commits, parts."""

from __future__ import annotations

from typing import Any

from sublet.functions.effects import Outgoing, WindowDue
from sublet.functions.state import Sum
from sublet.functions.windows import TumblingWindow
from sublet.runtime.partition.lifecycle.message_dispatch import LENT_BYTES_MAX
from sublet.runtime.partition.model.lease import Lease
from sublet.runtime.partition.model.work import Failure
from sublet.runtime.protocol.frames import ErrorInfo, Extra, Kind
from sublet.scheduler.binding.policy import Trigger
from sublet.statestore.contract import PARKED, Outcome, StateRow
from tests.unit.leases.harness import (
    Adder,
    Lender,
    Scripted,
    TakenCells,
    keeps,
    lends_to,
    result_of,
)
from tests.unit.partition.harness import BROKEN, CLIENT, NAME, PEER, REJECTED, make_function


def lender(*, in_parts: bool = False, **options: Any) -> Lender:
    """Lends everything to one worker."""
    if in_parts:
        options.setdefault("function", make_function(state=Sum(), order="none", slo="1ms"))
        options.setdefault("merger", Adder())
    return Lender(Scripted(lends_to("east"), trigger=Trigger.EACH), **options)


def stored(home: Lender, key: str) -> dict[bytes, StateRow]:
    return dict(home.owner.backend.partitions[NAME].state.get(key, {}))


# Keys and order


def test_a_lent_key_waits_and_others_go_on() -> None:
    home = lender()
    (lease,) = home.lend(1, ["a"])
    home.policy.trigger = Trigger.NEVER
    home.arrive(2, ["a", "b", "a"])
    assert home.run_home() == [["b"]]
    home.give_back(lease)

    assert home.run_home() == [["a", "a"]]
    home.settle()
    assert home.replies() == {1: "lent a", 2: "done a", 3: "done b", 4: "done a"}


def test_earlier_messages_of_a_key_go_along_with_a_later_one() -> None:
    home = Lender(Scripted(lends_to("east")))
    home.arrive(1, ["a", "b", "c"], time_left_ms=10_000)
    (lease,) = home.lend(4, ["a"])
    assert lease.work.waiting[0].message.number == 1
    assert set(lease.work.keys) == {"a"}
    home.give_back(lease)
    home.settle()
    replies = home.replies()
    assert (replies[1], replies[2], replies[3]) == ("lent a", "done b", "done c")
    assert [number for number, _ in home.owner.replies() if number in (1, 4)] == [1, 4]


def test_a_message_behind_a_lent_one_of_its_key_is_not_lent_to_another() -> None:
    home = lender()
    (first,) = home.lend(1, ["a"])
    assert home.lend(2, ["a"]) == []
    home.give_back(first)
    assert home.run_home() == [["a"]]


def test_messages_come_home_before_those_behind_them() -> None:
    home = lender()
    home.lend(1, ["a", "a"])
    home.policy.trigger = Trigger.NEVER
    home.arrive(3, ["a"])
    home.run_home()
    home.lose("east")

    assert home.run_home() == [["a", "a", "a"]]
    home.settle()
    assert [number for number, _ in home.owner.replies()] == [1, 2, 3]


def test_a_message_that_failed_at_its_lessee_is_tried_again_at_home() -> None:
    home = lender()
    (lease,) = home.lend(1, ["a", "a"])
    home.give_back(lease, failed={0: BROKEN}, home=[1])
    assert home.run_home() == []
    home.pass_time(20)
    assert home.run_home() == [["a"], ["a"]]
    home.settle()
    assert home.replies() == {1: "done a", 2: "done a"}
    assert home.owner.partition.counters.retries == 1


def test_a_message_that_was_rejected_at_its_lessee_is_answered_so() -> None:
    home = lender()
    (lease,) = home.lend(1, ["a"])
    home.give_back(lease, failed={0: REJECTED})
    home.settle()
    assert home.replies() == {1: "rejected"}


def test_a_function_with_one_state_is_lent_one_run_at_a_time() -> None:
    home = lender(function=make_function(kind="stateful", state=int, slo="1ms"))
    (lease,) = home.lend(1, ["", ""])
    assert home.lend(3, [""]) == []
    home.give_back(lease)
    assert len(home.run_home()) == 1


def test_a_function_without_state_is_lent_beside_itself() -> None:
    home = lender(function=make_function(kind="stateless", slo="1ms"))
    (first,) = home.lend(1, ["", ""])
    (second,) = home.lend(3, [""])
    home.give_back(second)
    home.give_back(first)
    home.settle()
    assert home.replies() == {1: "lent ", 2: "lent ", 3: "lent "}


def test_while_a_run_goes_on_alone_nothing_is_lent() -> None:
    home = lender()
    home.owner.pace.aside = False
    home.arrive(1, ["a"])
    home.owner.take()
    assert home.owner.keys_running() == [["a"]]
    assert home.lend(2, ["b"]) == []
    home.owner.finish()
    assert home.run_home() == [["b"]]


# Commits


def test_what_is_lent_is_on_record_and_run_by_the_next_owner() -> None:
    home = lender()
    home.lend(1, ["a", "b"])
    home.owner.commit()
    assert sorted(home.owner.records(PARKED)) == [f"+{CLIENT}:1"]

    heir = home.owner.take_over()
    heir.settle()
    assert dict(heir.replies()) == {1: "done a", 2: "done b"}
    assert heir.records(PARKED) == {}


def test_messages_that_are_lent_together_are_one_record_until_they_end() -> None:
    home = lender()
    (lease,) = home.lend(1, ["a", "b"])
    assert lease.work.columns is not None
    home.owner.commit()
    assert len(home.owner.records(PARKED)) == 1
    home.give_back(lease)
    home.settle()
    assert lease.work.columns is not None, "nobody had to look at a single message"
    assert home.replies() == {1: "lent a", 2: "lent b"}
    assert home.owner.records(PARKED) == {}


def test_when_one_of_them_fails_each_is_on_record_by_itself() -> None:
    home = lender()
    (lease,) = home.lend(1, ["a", "b"])
    home.owner.commit()
    home.give_back(lease, failed={1: Failure(ErrorInfo("failed", "no"), True)})
    home.owner.commit()
    assert list(home.owner.records(PARKED)) == [f"{CLIENT}:2"]

    heir = home.owner.take_over()
    heir.settle()
    assert dict(heir.replies()) == {1: "lent a", 2: "done b"}


def test_what_came_home_is_on_record_for_the_next_owner_by_itself() -> None:
    home = lender()
    home.lend(1, ["a", "b"])
    home.owner.commit()
    home.lose("east")
    home.owner.commit()
    assert sorted(home.owner.records(PARKED)) == [f"{CLIENT}:1", f"{CLIENT}:2"]


def test_the_next_owner_keeps_the_order_of_a_key_that_was_lent() -> None:
    home = lender()
    home.lend(1, ["a", "a"])
    home.policy.trigger = Trigger.NEVER
    home.arrive(3, ["a"])
    home.run_home()
    home.owner.commit()
    home.owner.commit()
    assert sorted(home.owner.records(PARKED)) == [f"+{CLIENT}:1", f"{CLIENT}:3"]

    heir = home.owner.take_over()
    heir.settle()
    assert [number for number, _ in heir.replies()] == [1, 2, 3]


def test_messages_with_something_of_their_own_are_on_record_by_themselves() -> None:
    home = lender()
    (lease,) = home.lend(1, ["a", "b"], extras={1: Extra(trace="00-abc-01")})
    assert lease.work.columns is None
    home.owner.commit()
    assert len(home.owner.records(PARKED)) == 2


def test_large_batches_are_on_record_message_by_message() -> None:
    home = lender()
    (lease,) = home.lend(1, ["a", "b"], payloads=[b"x" * (LENT_BYTES_MAX // 2)] * 2)
    assert lease.work.columns is None


def test_messages_that_are_lent_together_are_listed_and_one_of_them_can_be_cancelled() -> None:
    home = lender()
    home.lend(1, ["a", "b"])
    assert [(each.number, each.key) for each in home.owner.partition.requests.open(9)] == [
        (1, "a"),
        (2, "b"),
    ]
    found = home.owner.cancel(2)
    assert found is not None
    assert found.interrupted is not None
    home.owner.commit()
    home.owner.commit()
    assert sorted(home.owner.records(PARKED)) == [f"{CLIENT}:1", f"{CLIENT}:2"]
    home.lose("east")
    home.settle()
    replies = home.replies()
    assert replies[1] == "done a"
    assert replies[2] != "done b"


def test_effects_of_a_lessee_leave_with_the_commit_that_consumes_the_message() -> None:
    home = lender()
    (lease,) = home.lend(1, ["a"])
    home.give_back(lease, effects=[Outgoing(PEER, "x", b"\xa2hi", None, "")])
    assert home.owner.sent() == []
    home.settle()
    assert home.owner.sent() == ["hi"]
    assert home.owner.records(PARKED) == {}


def test_a_fenced_lessor_tells_nothing_of_what_its_lessee_did() -> None:
    home = lender()
    (lease,) = home.lend(1, ["a"])
    home.owner.commit()
    heir = home.owner.take_over()
    home.give_back(lease, effects=[Outgoing(PEER, "x", b"\xa2hi", None, "")])
    home.owner.commit()

    assert home.owner.stops == [Outcome.FENCED]
    assert (home.owner.sent(), home.owner.replies()) == ([], [])
    heir.settle()
    assert dict(heir.replies()) == {1: "done a"}


def test_a_result_for_a_partition_that_has_stopped_is_nothing() -> None:
    home = lender()
    (lease,) = home.lend(1, ["a"])
    home.owner.partition.stop(Outcome.FENCED)
    home.owner.commits.clear()
    home.owner.partition.leases.ended(lease, result_of(["a"]), 0.0)
    home.owner.partition.leases.ended(lease, None, 0.0)
    home.owner.collect()
    assert (home.owner.runs, home.owner.commits) == ([], [])


def test_a_partition_is_not_idle_while_something_is_lent() -> None:
    home = lender()
    (lease,) = home.lend(1, ["a"])
    home.owner.commit()
    assert not home.owner.partition.idle
    home.give_back(lease)
    home.settle()
    assert home.owner.partition.idle


# Messages that somebody does not wait for, or has asked before


def test_a_call_that_is_taken_back_while_it_is_lent_is_not_run_again() -> None:
    home = lender()
    home.lend(1, ["a"])
    home.owner.partition._parts.cancellation.cancel(
        CLIENT, 1, ErrorInfo("cancelled", "taken back"), 0.0
    )
    home.lose("east")
    assert home.run_home() == []
    home.settle()
    assert home.replies() == {1: "cancelled"}


def cancel(home: Lender, number: int) -> None:
    interrupt = home.owner.partition._parts.cancellation.cancel(
        CLIENT, number, ErrorInfo("cancelled", "taken back"), home.now_ms
    )
    if interrupt is not None:
        home.owner.partition.effects.append(interrupt)
    home.carry_out()


def test_a_lent_handler_that_can_await_is_recalled_and_the_others_of_its_lease_run_here() -> None:
    home = lender(function=make_function(is_async=True, slo="1ms"))
    (lease,) = home.lend(1, ["a", "a"])
    home.accept(lease)
    home.policy.trigger = Trigger.NEVER
    cancel(home, 1)
    assert home.revoked() == [("east", lease.id)]
    home.settle()

    assert home.replies() == {1: "cancelled", 2: "done a"}
    # What it has made of it comes too late.
    assert not home.give_back(lease)
    home.settle()
    assert len(home.replies()) == 2


def test_a_lent_handler_that_cannot_await_ends_where_it_is() -> None:
    home = lender()
    (lease,) = home.lend(1, ["a"])
    home.accept(lease)
    cancel(home, 1)
    assert home.revoked() == []
    home.give_back(lease)
    home.settle()

    assert home.replies() == {1: "lent a"}


def test_who_is_cancelled_after_its_result_came_keeps_its_effects() -> None:
    home = lender(function=make_function(is_async=True, slo="1ms"))
    (lease,) = home.lend(1, ["a"])
    home.accept(lease)
    home.give_back(lease)
    cancel(home, 1)
    home.settle()

    assert home.revoked() == []
    assert home.replies() == {1: "lent a"}


def test_what_has_expired_is_answered_instead_of_lent() -> None:
    home = lender()
    home.arrive(1, ["a", "b"], time_left_ms=5)
    home.pass_time(6)
    home.look()
    assert home.offers == []
    home.settle()
    assert home.replies() == {1: "deadline_exceeded", 2: "deadline_exceeded"}


def test_a_repeated_request_is_not_lent_beside_the_first() -> None:
    home = lender()
    same = {0: Extra(idempotency_key="k")}
    home.lend(1, ["a"], extras=same)
    home.owner.load()
    home.carry_out()
    home.arrive(2, ["a"], extras=same)
    home.look()
    (lease,) = home.offers
    home.give_back(lease)
    home.settle()
    assert home.replies() == {1: "lent a", 2: "lent a"}


def test_a_message_that_conflicts_with_one_that_is_lent_is_a_dead_letter() -> None:
    home = lender()
    same = {0: Extra(idempotency_key="k")}
    home.lend(1, ["a"], extras=same, payloads=[1])
    home.owner.load()
    home.carry_out()
    home.arrive(2, ["a"], kind=Kind.SEND, extras=same, payloads=[2])
    home.look()
    (lease,) = home.offers
    home.give_back(lease)
    home.settle()
    assert home.replies() == {1: "lent a"}
    assert home.owner.partition.counters.dead == 1
    assert home.owner.partition.idle


def test_a_lease_whose_messages_were_all_answered_before_ends_unseen() -> None:
    home = lender()
    same = {0: Extra(idempotency_key="k")}
    home.arrive(1, ["a"], extras=same)
    home.run_home()
    home.settle()
    # The next owner has to ask the store whether it was answered.
    heir = lender(backend=home.owner.backend)
    assert heir.lend(2, ["a"], extras=same) == []
    heir.owner.load()
    heir.carry_out()
    heir.settle()
    assert heir.replies() == {1: "done a", 2: "done a"}
    assert heir.owner.partition.counters.runs == 0
    assert heir.offers == []
    assert not heir.lessor.open


# Versions


def known_at_east(cells: TakenCells) -> Lender:
    """The lessee has the state of key a."""
    home = lender(cells=cells)
    home.lend(1, ["a"])
    home.owner.load()
    home.carry_out()
    home.owner.partition.leases.versions.of("a")
    home.give_back(home.offers[0], rows=[StateRow("a", b"", b"new")])
    home.settle()
    assert home.owner.partition.leases.versions.is_at("a", "east")
    return home


def test_a_state_that_was_changed_by_hand_is_nowhere_else() -> None:
    home = known_at_east(TakenCells())
    partition = home.owner.partition
    assert partition.state_editor.hold("a")
    partition.state_editor.replace("a", [StateRow("a", b"", b"by hand")], object(), 0.0)
    home.settle()

    assert not partition.leases.versions.is_at("a", "east")


def test_a_key_that_is_lent_is_not_changed_by_hand() -> None:
    home = lender()
    home.lend(1, ["a"])
    assert not home.owner.partition.state_editor.hold("a")
    assert home.owner.partition.state_editor.hold("b")


# In parts


def test_what_runs_in_parts_holds_no_key() -> None:
    adder = Adder()
    home = lender(in_parts=True, merger=adder)
    (first,) = home.lend(1, ["hot", "hot"])
    (second,) = home.lend(3, ["hot"])
    home.policy.trigger = Trigger.NEVER
    home.arrive(4, ["hot"])
    assert home.run_home() == [["hot"]]
    home.give_back(second, added=["hot"])
    home.give_back(first, added=["hot"])

    assert adder.absorbed == ["hot", "hot"]
    home.settle()
    assert home.replies() == {1: "lent hot", 2: "lent hot", 3: "lent hot", 4: "done hot"}
    assert stored(home, "hot")[b""].value == b"merged"


def test_parts_are_merged_when_the_run_that_uses_their_state_is_over() -> None:
    adder = Adder()
    home = lender(in_parts=True, merger=adder)
    (lease,) = home.lend(1, ["hot"])
    home.policy.trigger = Trigger.NEVER
    home.arrive(2, ["hot", "cold"])
    home.owner.take()
    home.give_back(lease, added=["hot"])
    assert adder.absorbed == []
    assert not home.owner.partition.idle
    home.owner.finish()

    assert adder.absorbed == ["hot"]
    home.settle()
    assert home.replies() == {1: "lent hot", 2: "done hot", 3: "done cold"}


def test_parts_wait_for_a_handler_that_awaits_something() -> None:
    adder = Adder()
    function = make_function(state=Sum(), order="none", slo="1ms", is_async=True)
    home = lender(in_parts=True, merger=adder, function=function)
    (lease,) = home.lend(1, ["hot"])
    home.policy.trigger = Trigger.NEVER
    home.arrive(2, ["hot"])
    home.owner.take()
    home.owner.finish(suspended=[0])
    home.give_back(lease, added=["hot"])
    assert adder.absorbed == []
    home.owner.end(f"{CLIENT}:2")

    assert adder.absorbed == ["hot"]
    home.settle()
    assert home.replies() == {1: "lent hot", 2: "ended"}


def test_parts_wait_for_their_states_which_are_read_once() -> None:
    adder, cells = Adder(), TakenCells()
    home = lender(in_parts=True, merger=adder, cells=cells)
    (first,) = home.lend(1, ["hot"])
    home.give_back(first, added=["hot"])
    home.lend(2, ["cold"])
    assert adder.absorbed == []
    assert [load.keys for load in home.owner.loads] == [["hot"]]
    home.owner.load()
    home.carry_out()

    assert adder.absorbed == ["hot"]
    assert home.owner.loads == []


def test_parts_that_do_not_fit_run_at_home() -> None:
    home = lender(in_parts=True, merger=Adder(refuses=True))
    (lease,) = home.lend(1, ["hot", "hot"])
    home.give_back(lease, added=["hot"])
    assert home.run_home() == [["hot", "hot"]]
    home.settle()
    assert home.replies() == {1: "done hot", 2: "done hot"}


def test_a_message_that_goes_home_from_a_part_runs_here_once() -> None:
    adder = Adder()
    home = lender(in_parts=True, merger=adder)
    (lease,) = home.lend(1, ["hot", "hot"])
    home.give_back(lease, added=["hot"], home=[1], reason="reads")
    assert home.run_home() == [["hot"]]
    home.settle()
    assert home.replies() == {1: "lent hot", 2: "done hot"}
    assert adder.absorbed == ["hot"]


def test_a_message_that_failed_in_a_part_runs_here() -> None:
    home = lender(in_parts=True)
    (lease,) = home.lend(1, ["hot", "hot"])
    home.give_back(lease, added=["hot"], failed={0: BROKEN})
    assert home.run_home() == [["hot"]]
    home.settle()
    assert home.replies() == {1: "done hot", 2: "lent hot"}


def test_a_call_whose_reply_cannot_be_told_has_added_once() -> None:
    """What it added is in the part: it must not run again."""
    home = lender(in_parts=True)
    (lease,) = home.lend(1, ["hot", "hot"])
    too_large = Failure(ErrorInfo("too_large", "the reply"), False)
    home.give_back(lease, added=["hot"], failed={0: too_large})
    assert home.run_home() == []
    home.settle()
    assert home.replies() == {1: "too_large", 2: "lent hot"}


def test_a_message_that_was_rejected_in_a_part_becomes_a_dead_letter() -> None:
    home = lender(in_parts=True)
    (lease,) = home.lend(1, ["hot"], kind=Kind.SEND)
    home.give_back(lease, failed={0: REJECTED})
    home.run_home()
    assert home.owner.partition.counters.dead <= 1
    home.settle()
    assert home.owner.partition.idle


def test_requests_with_an_idempotency_key_do_not_run_in_parts() -> None:
    home = lender(in_parts=True)
    (lease,) = home.lend(1, ["hot", "hot"], extras={0: Extra(idempotency_key="k")})
    assert [each.message.number for each in lease.work.waiting] == [2]
    assert home.run_home() == [["hot"]]
    home.give_back(lease, added=["hot"])
    home.settle()
    assert home.replies() == {1: "done hot", 2: "lent hot"}


def test_a_part_is_not_merged_into_a_state_that_somebody_else_has() -> None:
    """A function turns out to read its state while another part of it is under way: from then on
    its keys are lent whole."""
    adder = Adder()
    home = lender(in_parts=True, merger=adder, cells=TakenCells())
    (part,) = home.lend(1, ["hot"])
    (reader,) = home.lend(2, ["other"])
    home.give_back(reader, home=[0], reason="reads")
    home.lend(3, ["hot"])
    while home.owner.loads:
        home.owner.load()
    home.carry_out()
    whole = home.offers[-1]
    assert (whole.partial, whole.work.keys) == (False, ["hot"])

    home.give_back(part, added=["hot"])
    assert adder.absorbed == [], "the lessee would not know of it, and undo it"
    home.give_back(whole, rows=[StateRow("hot", b"", b"whole")])
    assert adder.absorbed == ["hot"]
    home.settle()
    assert stored(home, "hot")[b""].value == b"merged"
    assert not home.owner.partition.leases.versions.is_at("hot", "east")


def test_a_part_is_merged_when_a_whole_lease_of_its_key_has_come_to_nothing() -> None:
    adder = Adder()
    home = lender(in_parts=True, merger=adder)
    (part,) = home.lend(1, ["hot"])
    (reader,) = home.lend(2, ["other"])
    home.give_back(reader, home=[0], reason="reads")
    (whole,) = home.lend(3, ["hot"])
    home.give_back(part, added=["hot"])
    home.decline(whole)
    home.settle()
    assert adder.absorbed == ["hot"]
    assert len(home.replies()) == 3


def test_a_part_is_not_merged_while_its_key_is_changed_by_hand() -> None:
    adder = Adder()
    home = lender(in_parts=True, merger=adder)
    (lease,) = home.lend(1, ["hot"])
    partition = home.owner.partition
    assert partition.state_editor.hold("hot")
    home.give_back(lease, added=["hot"])
    assert adder.absorbed == [], "whoever changes it has read what is stored"
    partition.state_editor.replace("hot", [StateRow("hot", b"", b"by hand")], object(), 0.0)
    home.carry_out()

    assert adder.absorbed == ["hot"]
    home.settle()
    assert stored(home, "hot")[b""].value == b"merged"


def test_a_part_is_merged_when_a_change_by_hand_was_given_up() -> None:
    adder = Adder()
    home = lender(in_parts=True, merger=adder)
    (lease,) = home.lend(1, ["hot"])
    partition = home.owner.partition
    assert partition.state_editor.hold("hot")
    home.give_back(lease, added=["hot"])
    partition.state_editor.release("hot", 0.0)
    home.carry_out()
    assert adder.absorbed == ["hot"]


def test_a_crowd_comes_home_to_the_key_it_stood_behind() -> None:
    home = Lender(
        Scripted(keeps),
        function=make_function(state=Sum(), order="none", slo="1ms"),
        merger=Adder(),
    )
    home.arrive(1, ["hot"])
    home.owner.take()
    home.arrive(2, ["hot"] * 6)
    home.owner.take()
    home.policy._bind = lends_to("east")
    home.look()
    assert home.offers
    home.lose("east")
    home.owner.finish()
    home.settle()
    assert sorted(home.replies()) == [1, 2, 3, 4, 5, 6, 7]


# Windows


def windowed() -> Any:
    window = TumblingWindow("1s", event_time="at")
    return make_function(state=Sum(), order="none", window=window, slo="1ms", upstream=["feed"])


def test_a_watermark_waits_for_what_is_lent() -> None:
    home = lender(in_parts=True, function=windowed())
    (lease,) = home.lend(1, ["a"], kind=Kind.SEND, payloads=[{"at": 100}])
    home.arrive(2, ["feed"], kind=Kind.MARKER, payloads=[5_000])
    home.run_home()
    assert home.owner.partition.progress.watermark_ms < 5_000
    home.give_back(lease)
    home.settle()
    assert home.owner.partition.progress.watermark_ms == 5_000


def test_a_function_that_cannot_run_in_parts_is_lent_with_its_windows() -> None:
    home = lender(in_parts=True, function=windowed())
    (lease,) = home.lend(1, ["a"], kind=Kind.SEND, payloads=[{"at": 100}])
    assert lease.partial
    home.give_back(lease, home=[0], reason="reads")
    home.settle()
    (whole,) = home.lend(2, ["a"], kind=Kind.SEND, payloads=[{"at": 100}])
    assert not whole.partial


def whole_windows() -> tuple[Lender, Lease]:
    """Return one who has lent `a`, whose window ends at 1,000, while time has come to 1,200."""
    window = TumblingWindow("1s", event_time="at")
    home = lender(function=make_function(state=int, window=window, slo="1ms", upstream=["feed"]))
    (opened,) = home.lend(1, ["a"], kind=Kind.SEND, payloads=[{"at": 100}])
    home.give_back(opened, effects=[WindowDue("a1.a1.a1", 1_000, "a")])
    (other,) = home.lend(2, ["b"], kind=Kind.SEND, payloads=[{"at": 1_100}])
    home.arrive(3, ["feed"], kind=Kind.MARKER, payloads=[1_200])
    home.run_home()
    (lease,) = home.lend(4, ["a"], kind=Kind.SEND, payloads=[{"at": 1_500}])
    assert home.owner.partition.progress.watermark_ms < 1_000
    home.give_back(other)
    assert home.owner.partition.progress.watermark_ms == 1_200
    return home, lease


def test_a_window_that_is_away_closes_when_it_is_back() -> None:
    home, lease = whole_windows()
    assert home.run_home() == []
    home.give_back(lease, rows=[StateRow("a", b"", b"later")])

    assert home.run_home() == [["a"]]
    home.settle()
    assert home.owner.partition.counters.windows_ended == 1
    assert stored(home, "a")[b""].value == b"later"


def test_messages_that_opened_a_window_which_is_over_by_now_run_at_home() -> None:
    """Functions downstream were told that this time is over: a result must not follow."""
    home, lease = whole_windows()
    due = WindowDue("a1.a3.a1", 1_200, "a")
    home.give_back(lease, rows=[StateRow("a", b"", b"late")], effects=[due])

    assert home.run_home() == [["a", "a"]]
    home.settle()
    assert stored(home, "a") == {}
    assert home.owner.partition._leased.works == {}
