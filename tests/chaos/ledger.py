"""What was asked for, as the load knows it, and what came of it, as is read at the end. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

Numbers = dict[str, dict[str, int]]
"""By key and sender: the last number."""


class Ledger(msgspec.Struct):
    """What must have happened, exactly."""

    tallied: Numbers = {}
    stepped: Numbers = {}
    balances: dict[str, int] = {}
    relayed: dict[str, int] = {}
    """By key: hops, two for each call."""
    reminded: dict[str, list[str]] = {}
    """By key: the ids of timers."""
    purchased: dict[str, int] = {}
    survived: dict[str, int] = {}
    dead: list[str] = []
    windows: dict[str, int] = {}
    """By `key start`: the sum."""
    clicked: dict[str, int] = {}
    answered: dict[str, int] = {}
    """By kind of load: answers that came."""
    asked_again: int = 0
    """Requests that were repeated because of an error, which their idempotency key allows."""
    problems: list[str] = []
    """Wrong answers, errors, and answers that never came."""

    def note(self, problem: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(problem)


PROBLEMS_MAX = 50


def merged(ledgers: Iterable[Ledger]) -> Ledger:
    """Return what several loads have asked for together."""
    whole = Ledger()
    for each in ledgers:
        for numbers, more in ((whole.tallied, each.tallied), (whole.stepped, each.stepped)):
            for key, senders in more.items():
                numbers.setdefault(key, {}).update(senders)
        for sums, added in (
            (whole.balances, each.balances),
            (whole.relayed, each.relayed),
            (whole.purchased, each.purchased),
            (whole.survived, each.survived),
            (whole.windows, each.windows),
            (whole.clicked, each.clicked),
            (whole.answered, each.answered),
        ):
            for key, amount in added.items():
                sums[key] = sums.get(key, 0) + amount
        for key, ids in each.reminded.items():
            whole.reminded.setdefault(key, []).extend(ids)
        whole.dead.extend(each.dead)
        whole.asked_again += each.asked_again
        whole.problems.extend(each.problems)
    return whole


class Found(msgspec.Struct):
    """What is there."""

    tallied: Numbers = {}
    hubs: Numbers = {}
    """By hub and relay."""
    stepped: Numbers = {}
    wrong: list[str] = []
    """What functions have seen out of line."""
    balances: dict[str, int] = {}
    relayed: dict[str, int] = {}
    rung: dict[str, tuple[int, int]] = {}
    """By key: count and digest."""
    purchased: dict[str, int] = {}
    survived: dict[str, int] = {}
    dead: list[str] = []
    clicked: dict[str, int] = {}


class EgressLog:
    """What a reader has got from egresses, who reads on from the positions that he was told."""

    def __init__(self) -> None:
        self.tallied: Numbers = {}
        self.rang: Counter[str] = Counter()
        self.windows: dict[str, int] = {}
        self.count = 0
        self.wrong: list[str] = []
        self._positions: dict[tuple[str, str], int] = {}

    def take(self, egress: str, partition: str, first: int, values: Iterable[object]) -> None:
        """Take values at positions from `first` on."""
        expected = self._positions.get((egress, partition))
        if expected is not None and first != expected:
            self._note(f"{egress} of {partition}: position {first} follows {expected - 1}")
        position = first
        for value in values:
            position += 1
            self.count += 1
            match egress, value:
                case "tallied", [str(key), str(sender), int(number)]:
                    self._tallied(key, sender, number)
                case "rang", str(id_):
                    self.rang[id_] += 1
                case "windows", [str(key), int(start_ms), int(total)]:
                    self._closed(f"{key} {start_ms}", total)
                case _:
                    self._note(f"{egress} has {value!r:.200}")
        self._positions[egress, partition] = position

    def _tallied(self, key: str, sender: str, number: int) -> None:
        last = self.tallied.setdefault(key, {})
        if number != last.get(sender, 0) + 1:
            self._note(f"tallied {key}: {sender} {number} follows {last.get(sender, 0)}")
        last[sender] = number

    def _closed(self, name: str, total: int) -> None:
        if name in self.windows:
            self._note(f"window {name} closed twice: {self.windows[name]}, then {total}")
        self.windows[name] = total

    def _note(self, problem: str) -> None:
        if len(self.wrong) < PROBLEMS_MAX:
            self.wrong.append(problem)
