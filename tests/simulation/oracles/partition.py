"""Knows what has to be true: while commits arrive, and when nothing moves any more."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec

from sublet.functions.address import partition_name
from sublet.functions.codec import split_column
from sublet.runtime.partition.records.timers import Timer
from sublet.runtime.protocol.egress import EgressColumns
from sublet.runtime.protocol.frames import Batch, Kind
from sublet.statestore.contract import AHEAD, DEAD, JOURNAL, PARKED, TIMER, Commit
from tests.simulation.oracles.verdict import check, now_done
from tests.simulation.worlds.handlers import (
    ATTEMPTS,
    DONE,
    EGRESS,
    OUTSIDE_MARK,
    PARTITIONS_PER_FUNCTION,
    KeyState,
)
from tests.simulation.worlds.repeats import dead_letters, is_repeat, judge_repeats

if TYPE_CHECKING:
    from tests.simulation.worlds.client import Said
    from tests.simulation.worlds.partition import World

_decode_batch = msgspec.msgpack.Decoder(Batch).decode
_decode = msgspec.msgpack.decode


class Oracle:
    def __init__(self, world: World) -> None:
        self._world = world
        self._timer_uids: dict[tuple[str, str], str] = {}
        self._timers_over: set[str] = set()
        self._clocks_ms: dict[str, int] = {}

    def judge(self) -> None:
        """Raise `ViolationError` if anything is not as it must be."""
        self._check_rest()
        self._check_histories()
        self._check_balances()
        self._check_replies()
        self._check_egress()
        self._check_repeats()

    def committed(self, commit: Commit) -> None:
        """A timer that was cancelled must not fire in this commit or any later one.

        Nor may the partition's clock go back.
        """
        known_ms = self._clocks_ms.get(commit.partition, 0)
        check(commit.clock_ms >= known_ms, "a clock went back", commit.partition)
        self._clocks_ms[commit.partition] = commit.clock_ms
        for record in commit.records:
            if record.kind == TIMER and record.value is not None:
                timer = _decode(record.value, type=Timer)
                uid = _decode(bytes(timer.payload))[1]
                self._timer_uids[commit.partition, record.id] = uid
        fired: set[str] = set()
        for entry in commit.outbox:
            batch = _decode_batch(entry.data)
            if batch.kind is Kind.SEND:
                for payload in split_column(batch.payloads):
                    uid = str(_decode(bytes(payload))[1])
                    if uid.endswith("@"):
                        fired.add(uid)
        check(not fired & self._timers_over, "a timer fired after its end", fired)
        for record in commit.records:
            if record.kind == TIMER and record.value is None:
                over = self._timer_uids.get((commit.partition, record.id))
                if over is not None:
                    self._timers_over.add(over)

    def _check_rest(self) -> None:
        for name, node in self._world.owners.items():
            partition, tables = node.partition, self._world.backend.partitions[name]
            check(not partition.stopped, "the last owner has stopped", name)
            for kind in (PARKED, JOURNAL, TIMER):
                check(not tables.records.get(kind), f"{kind} records are left", name)
            ahead = [each for each in tables.records.get(AHEAD, ()) if each != "~gone"]
            check(not ahead, "what was done ahead is still on record", name, ahead)
            # An owner that came after the goodbye keeps replies for the deserter, for a day.
            unsent = [each for each in tables.outbox if each != "~gone"]
            check(not unsent, "the outbox is not empty", name, unsent)
            check(partition.idle, "something still runs", name)
            check(partition.open_from_clients == 0, "messages are open", name)
            check(partition.queued == 0, "messages are queued", name)
        for client in self._world.clients:
            for channel in client.channels.values():
                check(channel.acked == len(channel.said), "not acknowledged", channel.partition)

    def _expected(self) -> tuple[dict[tuple[str, str], Counter[str]], Counter[str], set[str]]:
        """Return what each key's history must hold, how often it may hold what else, and what
        must be dead."""
        wanted: dict[tuple[str, str], Counter[str]] = {}
        maybe = self._maybe_called() + self._maybe_fired()
        dead: set[str] = set()
        unrun = self._unrun()

        def want(function: str, key: str, uid: str) -> None:
            if uid not in maybe:
                wanted.setdefault((function, key), Counter())[uid] += 1

        for function, said in {s.uid: (f, s) for _, f, s in reversed(self._world.script)}.values():
            op, uid, *args = said.payload
            if uid in unrun or op == "look":
                continue
            if op == "reject" or (op == "fail" and args[1] >= ATTEMPTS):
                if said.kind is Kind.SEND:
                    dead.add(uid)
                continue
            want(function, said.key, uid)
            if op == "send":
                want(args[1], args[2], uid + ">")
            elif op == "call":
                for call in range(1, args[2] + 1):
                    want("sim/ledger", args[1], f"{uid}?{call}")
            elif op == "timer" and args[4] != "cancel":
                if args[4] == "hand over":
                    want("sim/tally", args[3], uid + "~")
                want(args[2], args[3], uid + "@")
        return wanted, maybe, dead

    def _maybe_fired(self) -> Counter[str]:
        """Return the timers that somebody may cancel in time."""
        payloads = [said.payload for _, _, said in self._world.script]
        cancelled = {payload[2] for payload in payloads if payload[0] == "cancel"}
        timers = [payload for payload in payloads if payload[0] == "timer"]
        return Counter(
            {f"{each[1]}@" for each in timers if each[-1] == "hand over" or each[1] in cancelled}
        )

    def _maybe_called(self) -> Counter[str]:
        """Return the calls that are taken back when nobody waits for them any more, with how
        often each may have had its effect."""
        script = self._world.script
        asked = Counter(said.uid for _, _, said in script)
        early = {said.uid for _, _, said in script if said.may_end_early}
        maybe: Counter[str] = Counter()
        for _, _, said in script:
            op, uid, *args = said.payload
            if op == "call" and (uid in early or args[4] or said.deadline_ms is not None):
                # Trigger again by its idempotency key, it makes its calls again.
                for call in range(1, args[2] + 1):
                    maybe[f"{uid}?{call}"] = asked[uid] if uid in early else 1
        return maybe

    def _unrun(self) -> set[str]:
        """What must not have had any effect: everybody who asked was told so."""
        ended: dict[str, bool] = {}
        for _, _, said in self._world.script:
            early = said.untaken is not None or (said.may_end_early and said.ended_early())
            ended[said.uid] = ended.get(said.uid, True) and early
        return {uid for uid, early in ended.items() if early}

    def survives(self, said: Said) -> bool:
        """Tell whether what came of a message cannot be lost any more."""
        return True

    def _histories(self) -> dict[tuple[str, str], list[str]]:
        found: dict[tuple[str, str], list[str]] = {}
        for name, tables in self._world.backend.partitions.items():
            function = name.rpartition("/")[0]
            for key, rows in tables.state.items():
                value = rows[b""].value
                assert value is not None
                # Partitions of a function with one state each have a key in common.
                found.setdefault((function, key), []).extend(_decode(value, type=KeyState).history)
            for entry in tables.egress.get(DONE, []):
                columns = _decode(entry.data, type=EgressColumns)
                for key, value in zip(columns.keys, _decode(columns.values), strict=True):
                    found.setdefault((function, key), []).append(value)
        return found

    def _check_histories(self) -> None:
        wanted, maybe, dead = self._expected()
        for function in self._world.functions.values():
            if function.kind == "stateful":
                self._check_whole_partitions(function.name, wanted, maybe)
        for place, history in self._histories().items():
            if place[1] == "":
                continue
            self._check_deserter(history)
            found_counts = Counter(uid for uid in history if not _is_beside(uid))
            for uid in maybe.keys() & set(history):
                often = found_counts.pop(uid) > maybe[uid]
                check(not often, "a timer or a call had its effect twice", uid)
            want = wanted.pop(place, Counter())
            missing, extra = want - found_counts, found_counts - want
            check(not missing, "effects are missing", place, missing)
            check(not extra, "effects happened twice or never should", place, extra)
            self._check_order(place, history)
        check(not +sum(wanted.values(), Counter()), "effects are missing", wanted)
        self._check_dead(dead)

    def _check_dead(self, dead: set[str]) -> None:
        found = self._dead_letters()
        mine = Counter({uid: count for uid, count in found.items() if not is_repeat(uid)})
        check(mine == Counter(dead), "dead letters", mine, dead)

    def _dead_letters(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for tables in self._world.backend.partitions.values():
            for record in tables.records.get(DEAD, {}).values():
                assert record.value is not None
                found[_decode(record.value)[0][4][1]] += 1
        return found

    def _check_deserter(self, history: list[str]) -> None:
        for uid, count in Counter(history).items():
            check(not uid.startswith("~gone") or count == 1, "effects happened twice", uid)

    def _check_whole_partitions(
        self, function: str, wanted: dict[tuple[str, str], Counter[str]], maybe: Counter[str]
    ) -> None:
        """Compare functions that have one state a partition; take them out of `wanted`."""
        for index in range(PARTITIONS_PER_FUNCTION):
            name = partition_name(function, index)
            merged: Counter[str] = Counter()
            for key in self._world.keys:
                if self._world.partition_of(function, key) == name:
                    merged += wanted.pop((function, key), Counter())
            found = self._world.backend.partitions[name].state.get("", {})
            value = found[b""].value if found else None
            history = [] if value is None else _decode(value, type=KeyState).history
            self._check_deserter(history)
            stayed = Counter(uid for uid in history if not _is_beside(uid))
            for uid in maybe.keys() & set(history):
                check(stayed.pop(uid) <= maybe[uid], "it had its effect twice", uid)
            check(stayed == merged, "history", name, history, merged)

    def _check_balances(self) -> None:
        """Every amount is where its message went, and nowhere else."""
        amounts: dict[str, int] = {f"~gone.{number}": 1 for number in range(10)}
        for _, _, said in self._world.script:
            op, uid, *args = said.payload
            if op in ("add", "fail", "send", "call", "timer"):
                amounts[uid] = {"send": -args[0], "timer": 0}.get(op, args[0])
                for mark in (">", "@", "?1", "?2"):
                    amounts[uid + mark] = args[0]
        for name, tables in self._world.backend.partitions.items():
            for key, rows in tables.state.items():
                value = rows[b""].value
                assert value is not None
                state = _decode(value, type=KeyState)
                wanted = sum(amounts.get(uid, 0) for uid in state.history)
                check(state.balance == wanted, "the balance", name, key, state.balance, wanted)

    def _check_order(self, place: tuple[str, str], history: list[str]) -> None:
        function = self._world.functions[place[0]]
        if function.order == "none" or function.kind == "stateless":
            return
        at = {uid: position for position, uid in enumerate(history)}
        for client in self._world.clients:
            channel = client.channels.get(self._world.partition_of(*place))
            said = [] if channel is None else channel.said
            positions = [
                at[each.uid]
                for each in said
                if each.key == place[1]
                and each.uid in at
                and not each.idempotency_key
                and self.survives(each)
            ]
            check(positions == sorted(positions), "out of order", place, client.name, history)

    def _check_replies(self) -> None:
        histories = self._histories()
        answers: dict[str, Any] = {}
        for _, function, said in self._world.script:
            if said.kind is Kind.SEND:
                check(not said.replies, "a reply that nobody waits for", said.uid)
                continue
            check(len(said.replies) == 1, "replies", said.uid, len(said.replies))
            value, error = said.replies[0]
            op, uid, *args = said.payload
            if said.untaken is not None:
                continue
            if error is not None and error.code == "cancelled":
                check(said.withdrawn, "nobody has taken it back", said.uid)
                continue
            if error is not None and error.code in ("deadline_exceeded", "infeasible"):
                check(said.deadline_ms is not None, "it has no deadline", said.uid)
                continue
            fails = op == "reject" or (op == "fail" and args[1] >= ATTEMPTS)
            check((error is not None) == fails, "the reply", said.uid, error)
            check(answers.setdefault(uid, value) == value, "two answers to one request", uid)
            if error is None:
                check(value[0] == uid, "another's reply", uid, value)
                if op == "look":
                    self._check_look(function, said, value[1], histories)
                elif self._world.functions[function].kind == "keyed" and len(value) > 1:
                    history = histories[function, said.key]
                    check(history[value[1]] == uid, "a reply told what is not stored", uid)

    def _check_look(
        self,
        function: str,
        look: Said,
        seen: list[str],
        histories: dict[tuple[str, str], list[str]],
    ) -> None:
        """Who only reads sees what is stored, and all that was answered before it asked."""
        if self._world.functions[function].kind != "keyed":
            return
        history = histories.get((function, look.key), [])
        check(seen == history[: len(seen)], "a read saw what is not stored", look.uid, seen)
        for _, where, said in self._world.script:
            is_before = said.answered_ms < look.said_ms and said.replies[0][1] is None
            if is_before and self.survives(said) and (where, said.key) == (function, look.key):
                is_seen = said.uid in seen or said.uid not in history
                check(is_seen, "a read did not see what was answered before", look.uid, said.uid)

    def _check_egress(self) -> None:
        found = self._emitted()
        emitted = {said.uid for _, _, said in self._world.script if said.payload[0] == "emit"}
        wanted = Counter(emitted - self._unrun())
        check(found == wanted, "egress", found - wanted, wanted - found)

    def _check_repeats(self) -> None:
        """Compare what became of requests that conflict with others."""
        repeats = self._world.repeats
        if not repeats:
            return
        effects: Counter[str] = Counter()
        for history in self._histories().values():
            effects.update(filter(is_repeat, history))
        letters: Counter[tuple[str, str]] = Counter()
        for tables in self._world.backend.partitions.values():
            letters += dead_letters(tables.records.get(DEAD, {}).values())
        judge_repeats(repeats, lambda said: said.payload[0] == "reject", effects, letters)

    def _emitted(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for name in self._world.backend.partitions:
            position = 0
            for entry in now_done(self._world.store.read_egress(EGRESS, name, 0, 10_000)):
                check(entry.first == position, "egress positions have gaps", name)
                columns = _decode(entry.data, type=EgressColumns)
                values = _decode(columns.values)
                check(len(values) == entry.length, "egress length", name)
                found.update(values)
                position += entry.length
        return found


def _is_beside(uid: str) -> bool:
    """Tell whether an effect is of somebody that others look at."""
    return uid.startswith(("~gone", OUTSIDE_MARK)) or is_repeat(uid)
