"""What has no deadline at all is in nobody's way, and is not left for ever either."""

from __future__ import annotations

import pytest

from sublet.runtime.partition.lifecycle import background
from sublet.runtime.protocol.pipeline_messages import LOWEST_LEFT_MS
from sublet.scheduler.live_traffic import BACKGROUND_PAUSES, LIVE_MS
from sublet.scheduler.orders import LeastLaxity
from sublet.scheduler.urgency import Urgency
from tests.unit.partition.harness import Owner, batch
from tests.unit.partition.records.test_staged_batches import Driver, done_keys, seal, stage


@pytest.fixture(autouse=True)
def few_in_a_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "BACKGROUND_MESSAGES_MAX", 4)


def history(owner: Owner, count: int) -> None:
    """Let so many rows of the lowest urgency be committed; nothing of them runs yet."""
    driver = Driver(owner, "~history")
    keys = [f"h{number}" for number in range(count)]
    owner.held = True
    driver.ask(stage(keys), seal(("a", 1, count), left_ms=LOWEST_LEFT_MS))


def go_on(owner: Owner) -> None:
    """Let the partition have its turns from now on."""
    owner.held = False
    if owner.ready is not None:
        owner.take()


def make_owner() -> Owner:
    return Owner(urgency=Urgency(LeastLaxity()))


def test_while_nothing_else_comes_history_runs_as_anything_does() -> None:
    owner = make_owner()
    history(owner, 30)
    go_on(owner)

    assert len(owner.runs[0].keys) == 30


def test_a_message_is_not_run_together_with_history() -> None:
    owner = make_owner()
    history(owner, 3)
    owner.receive(batch(1, ["live"]))
    go_on(owner)

    assert list(owner.runs[0].keys) == ["live"]


def test_while_messages_come_few_rows_of_history_are_in_a_commit() -> None:
    owner = make_owner()
    owner.receive(batch(1, ["live"]))
    owner.settle()
    history(owner, 10)
    go_on(owner)
    assert len(owner.runs[0].keys) == 4
    owner.finish()
    # The commit of these is under way: as many may be in the next, and no more.
    assert len(owner.runs[0].keys) == 4
    owner.finish()
    assert not owner.runs
    owner.receive(batch(2, ["more"]))
    assert [list(each.keys) for each in owner.runs] == [["more"]]


def test_after_a_commit_with_history_the_store_rests_for_longer_than_it_took() -> None:
    owner = make_owner()
    owner.receive(batch(1, ["live"]))
    owner.settle()
    history(owner, 9)
    go_on(owner)
    owner.finish()
    owner.finish()
    owner.now_ms += 20
    owner.commit()
    owner.commit()
    assert not owner.runs
    resting_ms = owner.now_ms + BACKGROUND_PAUSES * 20
    owner.pass_time(resting_ms - owner.now_ms - 1)
    assert not owner.runs
    # Whatever is live does not care.
    owner.receive(batch(2, ["more"]))
    assert [list(each.keys) for each in owner.runs] == [["more"]]
    owner.finish()
    owner.commit()
    assert owner.wake_ms is not None
    assert owner.wake_ms <= resting_ms
    owner.pass_time(2)
    assert [list(each.keys) for each in owner.runs] == [["h8"]]


def test_when_no_message_has_come_for_a_while_history_goes_on_in_full() -> None:
    owner = make_owner()
    owner.receive(batch(1, ["live"]))
    owner.settle()
    history(owner, 30)
    owner.pass_time(LIVE_MS)
    go_on(owner)

    assert len(owner.runs[0].keys) == 30
    assert len(done_keys(owner)) == 30
