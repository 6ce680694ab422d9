"""Knows what has to be true of a cluster whose Redis has lost data.

What was stored and is lost cannot be asked for. But Redis is one for the cluster, so what is there
after a loss is the whole of one moment, and from then on all goes on from there as if nothing else
had ever been. Hence, even then:

- **Nothing hangs.** Everybody who asks is answered, or told that the outcome is unknown. Every
  partition comes to rest with one owner, nothing waits in it for ever, and whoever asks when all is
  well is answered: clients that were there, and new ones.
- **What is answered is so**, if it was asked after the last loss, or answered before the moment to
  which Redis went back: then every effect of it is there once, in order, and a reply tells where.
  Only what one partition had sent to another may be gone: acknowledged by a commit that was lost,
  and then deleted by its sender, as the docs say.
- **All else happened once or not at all**: callers were told a value, which was lost later, or that
  nobody knows. Nothing is there twice. Who was told that nothing happened can rely on it.
- **One writes**: whoever was the last to take a partition, by what is stored. Late commits of those
  before are refused, also if an epoch is given a second time.
- **What is there fits together**: balances are those of their histories, an egress has no gaps, no
  timer rings on data in which it was cancelled, and no clock goes back.

Windows are not compared: how far sources have come is lost as well, and a source that has said its
last word says it to nobody again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import msgspec

from sublet.functions.address import is_client
from sublet.functions.codec import split_column
from sublet.runtime.partition.model.channel_names import REPLY_MARK, endpoint_of
from sublet.runtime.protocol.frames import Batch, Kind
from sublet.statestore.contract import JOURNAL, PARKED, TIMER, Commit, OutboxEntry
from tests.simulation.oracles.cluster import ClusterOracle
from tests.simulation.oracles.verdict import check
from tests.simulation.worlds.client import Said
from tests.simulation.worlds.handlers import ATTEMPTS

MARKS = ">?@~"
"""What a message causes has its name, one of these, and more."""
ENDED_EARLY = {"deadline_exceeded", "cancelled", "infeasible"}
NOT_SAID = {"unknown_outcome", "unavailable", "unknown_function"}
"""What callers are told of whom nobody knows, or whom nobody has heard."""


class LossOracle(ClusterOracle):
    records_done = (PARKED, JOURNAL, TIMER)
    """What clients had done ahead stays under the names that they gave up, for a day."""

    def __init__(self, cluster: Any) -> None:
        super().__init__(cluster)
        self._sent: dict[tuple[str, str], dict[int, str]] = {}
        """Sender and destination to the messages sent, by number: their uids."""
        self._taken: dict[tuple[str, str], int] = {}
        """Destination and sender to how far it was ever taken, by commits that may be lost."""
        self._gone: set[str] = set()

    def copy(self) -> Callable[[], None]:
        """Return what brings back all that is known of what is stored now."""
        clocks_ms, uids = dict(self._clocks_ms), dict(self._timer_uids)
        over, writers = set(self._timers_over), dict(self._writers)

        def go_back() -> None:
            self._writers = dict(writers)
            self._clocks_ms, self._timer_uids = dict(clocks_ms), dict(uids)
            self._timers_over = set(over)

        return go_back

    def written(self, worker: str, commit: Commit) -> None:
        super().written(worker, commit)
        sender = commit.partition
        for source, upto in commit.inbox.items():
            self._taken[sender, source] = max(upto, self._taken.get((sender, source), 0))
        for entry in commit.outbox:
            self._sent.setdefault((sender, entry.destination), {}).update(_uids_in(entry))
        for destination, upto in commit.outbox_acknowledged.items():
            endpoint = endpoint_of(destination)
            tables = self._cluster.backend.partitions.get(endpoint)
            stored = 0 if tables is None else tables.inbox.get(sender, 0)
            ever = min(upto, self._taken.get((endpoint, sender), 0))
            sent = self._sent.get((sender, destination), {})
            self._gone.update(uid for number, uid in sent.items() if stored < number <= ever)

    def _is_gone(self, uid: str) -> bool:
        """Tell whether it, or what would have caused it, was deleted by its sender and is lost."""
        return any(uid.startswith(each) for each in self._gone)

    def _lacks(self, name: str) -> str:
        """Nothing: an owner that has stored nothing since hears of it by its first commit."""
        return ""

    # Who is told what

    def survives(self, said: Said) -> bool:
        error = said.replies[0][1] if said.replies else getattr(said, "taken_error", None)
        is_sure = error is None or error.code not in ENDED_EARLY | NOT_SAID
        return is_sure and self._cluster.losses.is_kept(said.said_ms, said.done_ms)

    def answered_after_all(self, asked: Sequence[Said], *, may_be_unknown: bool) -> None:
        """These were asked when all was well.

        A client that knew later owners takes those who begin again for former ones, until it is
        told so for as long as it has patience: what it sends meanwhile it cannot know anything of.
        """
        for said in asked:
            check(said.replies, "nobody is answered after all is well", said.uid)
            error = said.replies[0][1]
            is_known = may_be_unknown and error is not None and error.code == "unknown_outcome"
            check(error is None or is_known, "nobody is served after all", said.uid, error)

    def _check_taken(self) -> None:
        for _, _, said in self._cluster.script:
            error = getattr(said, "taken_error", None)
            is_known = error is None or error.code in NOT_SAID
            check(is_known, "a message was not taken", said.uid, error)

    # What is there

    def _surviving(self) -> set[str]:
        return {said.uid for _, _, said in self._cluster.script if self.survives(said)}

    def _expected(self) -> tuple[dict[tuple[str, str], Counter[str]], Counter[str], set[str]]:
        everything, maybe, dead = super()._expected()
        surviving = self._surviving()
        wanted: dict[tuple[str, str], Counter[str]] = {}
        for place, uids in everything.items():
            for uid, count in uids.items():
                if _cause_of(uid) in surviving and not self._is_gone(uid):
                    wanted.setdefault(place, Counter())[uid] = count
                else:
                    maybe[uid] = 1
        return wanted, maybe, dead

    def _check_dead(self, dead: set[str]) -> None:
        found = self._dead_letters()
        missing = (dead & self._surviving()) - found.keys()
        check(not missing, "dead letters are missing", missing)
        check(found.keys() <= dead, "dead letters that never should", found.keys() - dead)
        check(all(count == 1 for count in found.values()), "dead letters are there twice", found)

    def _check_replies(self) -> None:
        histories = self._histories()
        answers: dict[str, Any] = {}
        for _, function, said in self._cluster.script:
            if said.kind is Kind.SEND:
                check(not said.replies, "a reply that nobody waits for", said.uid)
                continue
            check(len(said.replies) == 1, "replies", said.uid, len(said.replies))
            value, error = said.replies[0]
            op, uid, *args = said.payload
            fails = op == "reject" or (op == "fail" and args[1] >= ATTEMPTS)
            if error is not None:
                is_early = error.code in ENDED_EARLY and said.may_end_early
                is_told = is_early or fails or error.code in NOT_SAID
                check(is_told, "the reply", said.uid, error)
                continue
            check(not fails, "the reply", said.uid, value)
            check(value[0] == uid, "another's reply", uid, value)
            if not self.survives(said):
                continue
            check(answers.setdefault(uid, value) == value, "two answers to one request", uid)
            if op == "look":
                self._check_look(function, said, value[1], histories)
            elif self._cluster.functions[function].kind == "keyed" and len(value) > 1:
                history = histories[function, said.key]
                is_there = history[value[1] : value[1] + 1] == [uid]
                check(is_there, "a reply told what is not stored", uid)

    def _check_egress(self) -> None:
        found = self._emitted()
        emitted = {said.uid for _, _, said in self._cluster.script if said.payload[0] == "emit"}
        missing = (emitted & self._surviving()) - found.keys()
        check(not missing, "the egress lacks what was answered", missing)
        extra = found - Counter(emitted)
        check(not extra, "the egress has what it should not, or twice", extra)

    def _check_pot(self) -> None:
        found = self._pot()
        for key in self._cluster.keys:
            sums = {0}
            for said in self._cluster.pot_said:
                if said.key != key:
                    continue
                with_it = {each + said.amount for each in sums}
                is_taken = said.taken_ms < inf
                if is_taken and self._cluster.losses.is_kept(said.said_ms, said.taken_ms):
                    sums = with_it
                elif is_taken or said.is_unknown:
                    sums |= with_it
            check(found.get(key, 0) in sums, "the pot", key, found.get(key, 0))

    def _check_windows(self) -> None:
        """They cannot be compared."""


def _uids_in(entry: OutboxEntry) -> dict[int, str]:
    """Return the uids of what an entry sends to another partition, by number."""
    if is_client(endpoint_of(entry.destination)) or entry.destination.endswith(REPLY_MARK):
        return {}
    batch = msgspec.msgpack.decode(entry.data, type=Batch)
    if batch.kind not in (Kind.SEND, Kind.CALL):
        return {}
    told = [msgspec.msgpack.decode(each) for each in split_column(batch.payloads)]
    return {
        entry.first + place: each[1]
        for place, each in enumerate(told)
        if isinstance(each, list) and len(each) > 1 and isinstance(each[1], str)
    }


def _cause_of(uid: str) -> str:
    """Return the message of a client that an effect is of."""
    ends = [uid.index(mark) for mark in MARKS if mark in uid]
    return uid[: min(ends)] if ends else uid
