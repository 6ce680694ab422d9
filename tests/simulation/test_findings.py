"""What the simulation has found: the seeds that failed, and each defect by itself.

A seed that fails becomes a line of `FINDINGS`, which is played for ever. It tells its story only
as long as the worlds make the same choices, so what it has found also becomes a small test below.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from sublet.functions.state import Sum
from sublet.runtime.leases.binding import TERM_MS
from sublet.runtime.leases.lessee import Lessee
from sublet.runtime.protocol.frames import ErrorInfo, Extra
from sublet.runtime.protocol.lease_messages import LeaseId
from sublet.scheduler.binding.policy import Trigger
from sublet.scheduler.laxity_queue import LaxityQueue
from sublet.statestore.contract import StateRow
from sublet.statestore.memory import MemoryBackend
from tests.simulation.seeds import play_all
from tests.unit.leases.harness import Adder, Lender, Scripted, TakenCells, keeps, lends_to
from tests.unit.partition.harness import CLIENT, make_function


class Finding(NamedTuple):
    world: str
    seed: int
    what_it_was: str


FINDINGS = [
    Finding("partition", 49, "a read need not see what was answered by an error"),
    Finding("leases", 0, "an owner does not pause without its worker"),
    Finding("cluster", 1319, "what was committed after a refusal passed what was refused"),
    Finding("cluster", 1563, "a replaced worker's word was taken for a loss of data"),
    Finding("cluster", 100459, "a worker that ended began to connect to a peer"),
    Finding("cluster", 20244, "what was refused here was taken elsewhere before it was sent again"),
    Finding("cluster", 202370, "who took a partition over early was not answered by its victim"),
    Finding("cluster", 1302, "a former owner's late word was taken for a loss of data"),
    Finding("cluster", 544, "what a partition had sent that left took the room of others for ever"),
    Finding("lease-pipelines", 1793, "rows that ran and were put back were told as taken"),
    Finding("partition", 4770, "a former owner took the answer to a call of the next for its own"),
    Finding("cluster", 516, "a copy that was refused for lack of room was not asked for again"),
    Finding("cluster", 5984, "who was refused by the last worker sent all again without a pause"),
    Finding("cluster", 4831, "what was acknowledged and lost was deleted by its sender"),
    Finding("cluster", 7927, "what was acknowledged and lost was waited for for ever"),
    Finding("cluster", 905, "a directory that went back stayed older if it was away just then"),
    Finding("cluster", 1237, "the same, seen by clients: nobody was where they looked"),
    Finding("cluster", 234, "only those who are gone knew how new the directory had been"),
    Finding("windows", 2229, "frames to a paused owner passed those that waited for their link"),
    Finding("leases", 1310, "who notes that somebody is silent does not keep the world awake"),
    Finding("lease-pipelines", 6556, "states were dropped after a lease was asked for"),
    Finding("lease-windows", 94, "markers after a takeover stood before those that waited"),
    Finding("cluster", 61, "who was refused after it waited for room kept it from all others"),
    Finding("cluster", 80, "a client without links never heard of a function that was new"),
    Finding("cluster", 198, "who waited for room when data was lost was left behind"),
    Finding("cluster", 290, "what was lost on its way kept its room of the window for ever"),
    Finding("cluster", 2226, "an owner that begins again said once what it lacks, and was doubted"),
    Finding("cluster", 388, "what is known of lost data was kept until the next commit"),
    Finding("cluster", 495, "who did not know of a loss acknowledged what its sender sent again"),
    Finding("leases", 983, "a client known only by what went ahead says goodbye, too"),
    Finding("elastic", 216, "money was counted from the second plan on, which never came"),
    Finding("elastic", 320, "predictive added and drained a worker in turn, as loads are uneven"),
    Finding("elastic", 368, "a leader that was dead to the others drained the last worker"),
    Finding("cluster", 807, "timers of lent work rang early by what the offer was on its way"),
]


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda each: f"{each.world}-{each.seed}")
def test_a_seed_that_has_failed_fails_no_more(finding: Finding) -> None:
    play_all(finding.world, range(finding.seed, finding.seed + 1))


def _lender(backend: MemoryBackend | None = None, cells: TakenCells | None = None) -> Lender:
    policy = Scripted(lends_to("east"), trigger=Trigger.EACH)
    return Lender(policy, backend=backend, cells=cells)


def test_a_lease_that_ends_while_answers_are_read_for_it_runs_nothing_again() -> None:
    home = _lender()
    same = {0: Extra(idempotency_key="k")}
    home.arrive(1, ["a"], extras=same)
    home.run_home()
    home.settle()
    # The next owner has to ask the store whether it was answered.
    heir = _lender(home.owner.backend)
    heir.lend(2, ["a"], extras=same)
    heir.lose("east")
    assert heir.owner.partition.counters.runs == 0
    while heir.owner.loads:
        heir.owner.load()
    heir.settle()
    assert heir.replies() == {1: "done a", 2: "done a"}
    assert heir.owner.partition.counters.runs == 0


def test_what_is_on_record_and_lent_again_does_not_fill_the_next_commit() -> None:
    function = make_function(state=Sum(), order="none", slo="1ms")
    home = Lender(Scripted(keeps), function=function, merger=Adder())
    home.arrive(1, ["hot"])
    home.owner.take()
    home.arrive(2, ["hot"] * 6)
    home.owner.take()
    home.owner.settle()
    home.policy._bind = lends_to("east")
    home.look()
    assert home.offers
    assert home.owner.partition._pending.message_count == 0


def test_a_state_stays_in_memory_until_all_that_was_read_of_it_before_is_here() -> None:
    function, adder = make_function(state=Sum(), order="none", slo="1ms"), Adder()
    policy = Scripted(lends_to("east"), trigger=Trigger.EACH)
    home = Lender(policy, function=function, merger=adder, cells=TakenCells())
    (first,) = home.lend(1, ["hot"])
    (second,) = home.lend(2, ["hot"])
    home.give_back(first, added=["hot"])
    home.give_back(second, added=["hot"])
    assert [load.keys for load in home.owner.loads] == [["hot"], ["hot"]]
    home.owner.load()
    while home.owner.commits:
        home.owner.commit()
    # Both parts are merged and stored. The second read knows nothing of them.
    assert adder.absorbed == ["hot", "hot"]
    partition = home.owner.partition
    assert "hot" in partition._parts.keys.in_use()
    home.owner.load()
    assert "hot" not in partition._parts.keys.in_use()


def test_a_state_whose_lease_ended_in_vain_is_nowhere_else_although_nothing_ran_at_home() -> None:
    home = _lender(cells=TakenCells())
    versions = home.owner.partition.leases.versions
    home.lend(1, ["a"])
    while home.owner.loads:
        home.owner.load()
    home.carry_out()
    versions.of("a")
    home.give_back(home.offers[0], rows=[StateRow("a", b"", b"new")])
    home.settle()
    before = versions.of("a")
    assert versions.is_at("a", "east")
    home.lend(2, ["a"])
    home.owner.partition._parts.cancellation.cancel(
        CLIENT, 2, ErrorInfo("cancelled", "taken back"), home.now_ms
    )
    home.pass_time(10 * TERM_MS)
    assert home.revoked()
    assert home.run_home() == []
    assert not versions.is_at("a", "east")
    assert versions.of("a") > before + 1


def test_a_lease_that_was_worked_off_is_not_taken_once_more() -> None:
    lessee = Lessee(LaxityQueue())
    lease = LeaseId("p", 1, 1)

    def offer() -> bool:
        return lessee.offered(
            lease,
            1,
            cost_ms=1.0,
            left_ms=100.0,
            home_ms=100.0,
            forced=True,
            now_ms=0.0,
            start_ms=0.0,
        )

    assert offer()
    lessee.ended(lease)
    assert lease in lessee
    assert not offer()
