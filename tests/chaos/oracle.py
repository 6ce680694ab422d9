"""Compares what was asked for with what is there: equality, never "at least". Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from tests.chaos.app import Rung, hub_of
from tests.chaos.ledger import EgressLog, Found, Ledger, Numbers

DIFFERENCES_SHOWN_MAX = 5


def violations(ledger: Ledger, found: Found, egress: EgressLog) -> list[str]:
    """Return every way in which the two differ; nothing if all is well."""
    hubs: Numbers = {}
    for key, count in ledger.relayed.items():
        hubs.setdefault(hub_of(key), {})[key] = count
    reminded = Counter(id_ for ids in ledger.reminded.values() for id_ in ids)
    compared: list[tuple[str, Mapping[str, object], Mapping[str, object]]] = [
        ("tally", ledger.tallied, found.tallied),
        ("tally's egress", ledger.tallied, egress.tallied),
        ("account", ledger.balances, found.balances),
        ("sum of accounts", *_sums(ledger.balances, found.balances)),
        ("relay", ledger.relayed, found.relayed),
        ("hub", hubs, found.hubs),
        ("timer", _rung(ledger.reminded), found.rung),
        ("timer's egress", reminded, egress.rang),
        ("purchase", ledger.purchased, found.purchased),
        ("survivor of failures", ledger.survived, found.survived),
        ("dead letter", Counter(ledger.dead), Counter(found.dead)),
        ("window", ledger.windows, egress.windows),
        ("lent sum", ledger.clicked, found.clicked),
        ("lent step", ledger.stepped, found.stepped),
    ]
    told = [f"out of line: {each}" for each in (*found.wrong, *egress.wrong)]
    for name, expected, actual in compared:
        told += _differences(name, expected, actual)
    return told


def shortfalls(ledger: Ledger, least: Mapping[str, int]) -> list[str]:
    """Return which kinds of load had fewer answers than is needed to say anything."""
    return [
        f"{kind}: {ledger.answered.get(kind, 0)} answers; at least {count} are needed"
        for kind, count in least.items()
        if ledger.answered.get(kind, 0) < count
    ]


def _sums(
    expected: Mapping[str, int], actual: Mapping[str, int]
) -> tuple[dict[str, int], dict[str, int]]:
    return {"all": sum(expected.values())}, {"all": sum(actual.values())}


def _rung(reminded: Mapping[str, list[str]]) -> dict[str, tuple[int, int]]:
    found = {}
    for key, ids in reminded.items():
        rung = Rung()
        for id_ in ids:
            rung.take(id_)
        found[key] = (rung.count, rung.digest)
    return found


def _differences(
    name: str, expected: Mapping[str, object], actual: Mapping[str, object]
) -> list[str]:
    differing = [
        f"{name} {key}: {actual.get(key)}, not {expected.get(key)}"
        for key in sorted({*expected, *actual})
        if actual.get(key) != expected.get(key)
    ]
    shown = differing[:DIFFERENCES_SHOWN_MAX]
    if len(differing) > len(shown):
        shown.append(f"{name}: {len(differing) - len(shown)} more")
    return shown
