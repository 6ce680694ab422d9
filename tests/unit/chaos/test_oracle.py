"""The oracle of the chaos runs notices whatever is lost, doubled, or out of order."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import NamedTuple

import pytest

from tests.chaos.app import Line, Rung, Stamp, hub_of
from tests.chaos.ledger import EgressLog, Found, Ledger, merged
from tests.chaos.oracle import shortfalls, violations


class Books(NamedTuple):
    ledger: Ledger
    found: Found
    egress: EgressLog


def rung(*ids: str) -> tuple[int, int]:
    state = Rung()
    for each in ids:
        state.take(each)
    return state.count, state.digest


@pytest.fixture
def books() -> Books:
    """A small run in which all went well."""
    ledger = Ledger(
        tallied={"a": {"load0": 2, "load1": 1}},
        stepped={"s": {"load0": 3}},
        balances={"x": -5, "y": 5},
        relayed={"relay1": 4},
        reminded={"t": ["load0-1", "load0-2"]},
        purchased={"buyer1": 2},
        survived={"stumbler1": 1},
        dead=["load0-9"],
        windows={"sensor1 0": 7},
        clicked={"hot0": 30},
        answered={"tally": 3},
    )
    found = Found(
        tallied=deepcopy(ledger.tallied),
        hubs={hub_of("relay1"): {"relay1": 4}},
        stepped=deepcopy(ledger.stepped),
        balances=dict(ledger.balances),
        relayed=dict(ledger.relayed),
        rung={"t": rung("load0-1", "load0-2")},
        purchased=dict(ledger.purchased),
        survived=dict(ledger.survived),
        dead=list(ledger.dead),
        clicked=dict(ledger.clicked),
    )
    egress = EgressLog()
    egress.take("tallied", "p", 1, [["a", "load0", 1], ["a", "load1", 1]])
    egress.take("tallied", "p", 3, [["a", "load0", 2]])
    egress.take("rang", "p", 1, ["load0-2", "load0-1"])
    egress.take("windows", "p", 1, [["sensor1", 0, 7]])
    return Books(ledger, found, egress)


def test_a_run_in_which_all_went_well_is_no_violation(books: Books) -> None:
    assert violations(*books) == []


def _set(place: dict[str, dict[str, int]], number: int) -> None:
    for senders in place.values():
        senders["load0"] = number


Breakage = Callable[[Books], object]
BREAKAGES: dict[str, Breakage] = {
    "a lost tally": lambda books: _set(books.found.tallied, 1),
    "a doubled tally": lambda books: _set(books.found.tallied, 3),
    "a tally of nobody": lambda books: books.found.tallied["a"].update(other=1),
    "a lost step": lambda books: _set(books.found.stepped, 2),
    "a doubled step": lambda books: _set(books.found.stepped, 4),
    "something out of line": lambda books: books.found.wrong.append("tally a: load0 1"),
    "a lost payment": lambda books: books.found.balances.update(y=0),
    "a doubled payment": lambda books: books.found.balances.update(y=10),
    "a lost relay": lambda books: books.found.relayed.update(relay1=2),
    "a doubled relay": lambda books: books.found.relayed.update(relay1=6),
    "a lost call": lambda books: books.found.hubs[hub_of("relay1")].update(relay1=3),
    "a doubled call": lambda books: books.found.hubs[hub_of("relay1")].update(relay1=5),
    "a lost timer": lambda books: books.found.rung.update(t=rung("load0-1")),
    "a doubled timer": lambda books: books.found.rung.update(t=rung("load0-1", "load0-1")),
    "a timer told twice": lambda books: books.egress.take("rang", "p", 3, ["load0-1"]),
    "a timer that was never told": lambda books: books.egress.rang.pop("load0-1"),
    "a lost purchase": lambda books: books.found.purchased.update(buyer1=1),
    "a doubled purchase": lambda books: books.found.purchased.update(buyer1=3),
    "a lost survivor": lambda books: books.found.survived.update(stumbler1=0),
    "a doubled survivor": lambda books: books.found.survived.update(stumbler1=2),
    "a lost dead letter": lambda books: books.found.dead.clear(),
    "a doubled dead letter": lambda books: books.found.dead.append("load0-9"),
    "a dead letter of what does not fail": lambda books: books.found.dead.append("chaos/tally a"),
    "a lost window": lambda books: books.egress.windows.clear(),
    "a wrong window": lambda books: books.egress.windows.update({"sensor1 0": 8}),
    "a window told twice": lambda books: books.egress.take("windows", "p", 2, [["sensor1", 0, 7]]),
    "a late event": lambda books: books.egress.take("late", "p", 1, [["sensor1", 5, 1]]),
    "a lost lent sum": lambda books: books.found.clicked.update(hot0=29),
    "a doubled lent sum": lambda books: books.found.clicked.update(hot0=31),
    "a lost value of an egress": lambda books: _set(books.egress.tallied, 1),
    "a value of an egress twice": lambda books: books.egress.take(
        "tallied", "p", 4, [["a", "load0", 2]]
    ),
    "a gap in an egress' positions": lambda books: books.egress.take("rang", "p", 4, []),
}


@pytest.mark.parametrize("name", BREAKAGES)
def test_every_loss_and_every_double_is_noticed(books: Books, name: str) -> None:
    BREAKAGES[name](books)
    assert violations(*books) != []


def test_two_wrong_balances_that_cancel_out_are_noticed(books: Books) -> None:
    books.found.balances.update(x=-6, y=6)
    assert len(violations(*books)) == 2


def test_a_line_notes_what_is_lost_doubled_or_early() -> None:
    for numbers in ([1, 3], [1, 1], [2, 1]):
        line = Line()
        for number in numbers:
            line.take(Stamp("load0", number))
        assert line.wrong, numbers


def test_a_run_without_enough_answers_says_nothing() -> None:
    ledger = Ledger(answered={"tally": 9, "timer": 10})
    assert shortfalls(ledger, {"tally": 10, "timer": 10, "http": 1}) == [
        "tally: 9 answers; at least 10 are needed",
        "http: 0 answers; at least 1 are needed",
    ]


def test_what_several_loads_have_asked_for_adds_up(books: Books) -> None:
    other = Ledger(
        tallied={"a": {"load2": 4}},
        balances={"x": 1},
        reminded={"t": ["load2-1"]},
        problems=["late"],
    )
    whole = merged([books.ledger, other])
    assert whole.tallied == {"a": {"load0": 2, "load1": 1, "load2": 4}}
    assert whole.balances == {"x": -4, "y": 5}
    assert whole.reminded == {"t": ["load0-1", "load0-2", "load2-1"]}
    assert whole.problems == ["late"]
    assert books.ledger.tallied == {"a": {"load0": 2, "load1": 1}}
