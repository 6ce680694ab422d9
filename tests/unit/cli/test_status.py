"""What `sublet status` makes of what workers say of their leases."""

from __future__ import annotations

import re

import msgspec
import pytest

from sublet.runtime.cli.commands.status import _show, describe
from sublet.runtime.protocol.frames import FunctionInfo, Topology
from sublet.runtime.protocol.rpc import FunctionLeases, StatusReport

TOPOLOGY = Topology(
    version=1,
    functions=[FunctionInfo("shop/cart", 1, "keyed")],
    placement={"shop/cart/0": "w1"},
    workers={"w1": "127.0.0.1:1", "w2": "127.0.0.1:2", "w3": "127.0.0.1:3"},
)


def report(worker: str, leases: FunctionLeases | None) -> StatusReport:
    return StatusReport(
        worker=worker,
        topology=TOPOLOGY,
        partitions=[],
        counters={},
        leases={} if leases is None else {"shop/cart": leases},
    )


def auto(choice: str, reason: str, lent: float) -> FunctionLeases:
    counts = {"lent": lent, "returned": lent - 1, "states_sent": 2 * lent, "round_trip_ms": 0.5}
    return FunctionLeases(
        binding="auto", choice=choice, reason=f"{choice}: {reason}", counts=counts
    )


def described(*leases: FunctionLeases | None) -> dict[str, object]:
    workers = {f"w{number}": report(f"w{number}", each) for number, each in enumerate(leases, 1)}
    return describe(workers["w1"], workers, {}, 0)


def test_leases_are_added_up_over_workers_that_follow_the_same_policy() -> None:
    told = described(
        auto("static", "states are large", 1),
        auto("accept-and-check", "few are late", 3),
        auto("accept-and-check", "many are late", 10),
    )["leases"]

    assert told == [
        {
            "function": "shop/cart",
            "binding": "auto",
            "choice": "accept-and-check",
            "reason": "accept-and-check: many are late",
            "workers": ["w2", "w3"],
            "counts": {"lent": 13, "returned": 11, "states_sent": 26, "round_trip_ms": 1.0},
        },
        {
            "function": "shop/cart",
            "binding": "auto",
            "choice": "static",
            "reason": "static: states are large",
            "workers": ["w1"],
            "counts": {"lent": 1, "returned": 0, "states_sent": 2, "round_trip_ms": 0.5},
        },
    ]


def test_the_table_of_leases_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    _show(described(auto("accept-and-check", "many are late", 10), None))

    text = capsys.readouterr().out
    (row,) = [line for line in text.splitlines() if "accept-and-check" in line]
    assert re.split(r"  +", row.strip()) == [
        *("shop/cart", "auto", "accept-and-check", "1"),
        *("10", "9", "0", "0", "20", "many are late"),
    ]


def test_where_nothing_may_be_lent_there_is_no_table_of_leases(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _show(described(None, None))

    assert "leases" not in capsys.readouterr().out


def test_a_store_that_fails_stands_at_the_top(capsys: pytest.CaptureFixture[str]) -> None:
    failing = msgspec.structs.replace(
        report("w1", None), store_failing_s=8.7, store_problem="the Redis at r:1: OOM"
    )
    well = report("w2", None)

    _show(describe(failing, {"w1": failing, "w2": None}, {}, 0))
    everywhere = capsys.readouterr().out
    some = describe(failing, {"w1": failing, "w2": well}, {}, 0)
    _show(some)
    here = capsys.readouterr().out
    _show(describe(well, {"w2": well}, {}, 0))

    assert everywhere.startswith("store: failing for 9 s (the Redis at r:1: OOM)\n")
    assert here.startswith("store: failing for 9 s at w1 (the Redis at r:1: OOM)\n")
    assert [each["store"] for each in some["workers"]] == [
        {"failing_s": 8.7, "problem": "the Redis at r:1: OOM"},
        None,
    ]
    assert capsys.readouterr().out.startswith("workers\n")


def test_a_worker_that_is_not_ready_is_shown_with_the_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reason = "the worker has not joined its cluster yet: shop/cart/0 could not be taken (timeout)"
    waiting, well = (
        msgspec.structs.replace(report("w1", None), not_ready=reason),
        report("w2", None),
    )

    described = describe(waiting, {"w1": waiting, "w2": well}, {}, 0)
    _show(described)

    assert [each["not_ready"] for each in described["workers"]] == [reason, ""]
    assert capsys.readouterr().out.startswith(f"w1 is not ready: {reason}\n\nworkers\n")


def test_a_function_that_no_worker_has_is_shown_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    gone = FunctionInfo("shop/gone", 16, "keyed", absent=True)
    topology = msgspec.structs.replace(TOPOLOGY, functions=[*TOPOLOGY.functions, gone])
    told = msgspec.structs.replace(report("w1", None), topology=topology)
    shown = describe(told, {"w1": told}, {}, 0)

    assert [(each["name"], each["absent"]) for each in shown["functions"]] == [
        ("shop/cart", False),
        ("shop/gone", True),
    ]
    _show(shown)
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if line.startswith("  shop/gone")]
    assert re.split(r"  +", row.strip())[:4] == ["shop/gone", "keyed", "16", "0 (no worker has it)"]


def test_a_function_that_its_app_no_longer_has_is_named_with_what_to_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    gone = FunctionInfo("shop/gone", 16, "keyed", absent=True)
    other = FunctionInfo("desk/add", 16, "keyed", absent=True)
    topology = msgspec.structs.replace(TOPOLOGY, functions=[*TOPOLOGY.functions, gone, other])
    told = msgspec.structs.replace(report("w1", None), topology=topology)
    shown = describe(told, {"w1": told}, {}, 0)

    assert shown["undeclared"] == ["shop/gone"]
    _show(shown)
    (line,) = [each for each in capsys.readouterr().out.splitlines() if "no longer" in each]
    assert line.startswith("shop/gone is stored, but no longer declared")
    assert 'aliases=["gone"]' in line
