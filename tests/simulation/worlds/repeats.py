"""Requests that are asked again under their idempotency keys, and others under the same keys.

Under one idempotency key one request counts, whoever asks for it and how often: it has its effect
once, and all who asked get one answer. Whoever asks for something else under it is told so: by an
error if it waits for the answer, otherwise by a dead letter. Nothing that was taken may vanish.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple

import msgspec

from sublet.runtime.partition.records.dead_letters import DeadLetter
from sublet.runtime.protocol.frames import Kind
from sublet.statestore.contract import Record
from tests.simulation.oracles.verdict import check
from tests.simulation.worlds.client import Said

CONFLICT = "idempotency_conflict"
MARK = "="
"""The names of these requests begin with it, so that other oracles leave them alone."""
POOL = ("i0", "i1", "i2", "i3")
"""Few: the same one is used for several functions and keys, where it means something else."""

_decode_letter = msgspec.msgpack.Decoder(DeadLetter).decode
_decode = msgspec.msgpack.decode


class Asking(NamedTuple):
    """One time that somebody asks."""

    function: str
    said: Said
    after_ms: int
    """How long after the first who asks for anything under its key."""


def is_repeat(uid: str) -> bool:
    return uid.startswith(MARK)


def draw_askings(
    chance: Random,
    number: int,
    function: str,
    key: str,
    payload: Callable[[str], list[Any]],
) -> list[Asking]:
    """Return all who ask for one thing, or for two or three under one idempotency key.

    `payload` makes the message of a request from its name.
    """
    idempotency_key = chance.choice([*POOL, f"own {number}", f"own {number}", ""])
    names = [f"{MARK}{number}"]
    if idempotency_key and chance.random() < 0.4:
        names += [f"{MARK}{number}{other}" for other in "ab"[: chance.randint(1, 2)]]
    spread_ms = chance.choice([1, 30, 300, 1_500])
    askings = []
    for name in names:
        message, times = payload(name), chance.randint(1, 3) if idempotency_key else 1
        for _ in range(times):
            kind = chance.choice([Kind.CALL, Kind.SEND])
            said = Said(kind, key, message, idempotency_key)
            askings.append(Asking(function, said, chance.randrange(spread_ms)))
    return askings


def dead_letters(records: Iterable[Record]) -> Counter[tuple[str, str]]:
    """Return who is dead for what: names of requests and codes of errors."""
    found: Counter[tuple[str, str]] = Counter()
    for record in records:
        assert record.value is not None
        letter = _decode_letter(record.value)
        found[str(_decode(bytes(letter.message.payload))[1]), letter.error.code] += 1
    return found


def judge_repeats(
    askings: Sequence[Asking],
    fails: Callable[[Said], bool],
    effects: Mapping[str, int],
    dead: Mapping[tuple[str, str], int],
) -> None:
    """Compare what became of all requests; `fails` tells which can have no effect."""
    groups: dict[tuple[str, str, str], list[Said]] = {}
    for number, (function, said, _) in enumerate(askings):
        # Without an idempotency key each is by itself.
        own = said.idempotency_key or f"-{number}"
        groups.setdefault((function, said.key, own), []).append(said)
        if said.kind is Kind.CALL:
            check(len(said.replies) == 1, "replies", said.uid, len(said.replies))
        else:
            check(not said.replies, "a reply that nobody waits for", said.uid)
    for place, asked in groups.items():
        _judge_group(place, asked, fails, effects, dead)
    known = {asking.said.uid for asking in askings}
    extra = {uid for uid in effects if uid not in known}
    check(not extra, "effects that nobody asked for", extra)


def _judge_group(
    place: tuple[str, str, str],
    asked: Sequence[Said],
    fails: Callable[[Said], bool],
    effects: Mapping[str, int],
    dead: Mapping[tuple[str, str], int],
) -> None:
    requests: dict[str, list[Said]] = {}
    for said in asked:
        requests.setdefault(said.uid, []).append(said)
    refused = {
        uid: sum(_code(each) == CONFLICT for each in same) + dead.get((uid, CONFLICT), 0)
        for uid, same in requests.items()
    }
    counted = [uid for uid, count in refused.items() if not count]
    told = {uid: (len(same), refused[uid], effects.get(uid, 0)) for uid, same in requests.items()}
    check(len(counted) < 2, "what was taken under a used idempotency key vanished", place, told)
    check(counted, "nothing counts under an idempotency key", place, told)
    for uid, same in requests.items():
        often = effects.get(uid, 0)
        if uid != counted[0]:
            check(refused[uid] == len(same), "a conflict was not told to all", place, told)
            check(not often, "a request that conflicts had an effect", place, told)
        else:
            failed = fails(same[0])
            wanted = 0 if failed else 1
            check(often == wanted, "effects of one request", place, uid, often, wanted)
            _judge_answers(place, uid, same, failed, dead)


def _judge_answers(
    place: tuple[str, str, str],
    uid: str,
    same: Sequence[Said],
    failed: bool,
    dead: Mapping[tuple[str, str], int],
) -> None:
    calls = [each for each in same if each.kind is Kind.CALL]
    for said in calls:
        value, error = said.replies[0]
        check((error is not None) == failed, "the reply", place, uid, error)
        check((value, error) == calls[0].replies[0], "two answers to one request", place, uid)
    letters = sum(count for (name, _), count in dead.items() if name == uid)
    # Whoever waits for no answer is told by a dead letter, once for all of them.
    wanted = int(failed and len(calls) < len(same))
    check(letters == wanted, "dead letters of a request", place, uid, letters, wanted)


def _code(said: Said) -> str:
    error = said.replies[0][1] if said.replies else None
    return "" if error is None else error.code
