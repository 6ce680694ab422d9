"""The text that Prometheus reads: every metric of the list, in a form that its parser takes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from prometheus_client.parser import text_string_to_metric_families

from sublet.functions.windows import BEGINNING_MS
from sublet.runtime.leases.lessor import LeaseStats
from sublet.runtime.observability.telemetry import SpanTimes, Telemetry
from sublet.runtime.partition.model.effects import Counters
from sublet.runtime.services.metrics import METRICS, exposition
from sublet.runtime.services.worker_service import ServedWorker, leases_of
from sublet.scheduler.binding.auto import AutoBinding
from sublet.scheduler.scaling.actions import Slot
from sublet.scheduler.urgency import Learned
from sublet.statestore.contract import Trouble
from tests.unit.scaling.harness import World

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def partition(consumed: int, refusals: dict[str, int]) -> Any:
    counters = Counters()
    counters.consumed = consumed
    return SimpleNamespace(
        env=SimpleNamespace(function=SimpleNamespace(name="shop/cart")),
        partition=SimpleNamespace(
            counters=counters,
            refusals=refusals,
            queued=5,
            pipelines=SimpleNamespace(staging=SimpleNamespace(bytes=7, sealed_rows=3)),
            snapshots=SimpleNamespace(bytes=11),
            progress=SimpleNamespace(is_used=True, by_clock=False, watermark_ms=1000 * consumed),
        ),
        cache=SimpleNamespace(bytes=100, evicted=1),
    )


def worker() -> tuple[ServedWorker, Any]:
    host = SimpleNamespace(
        partitions={
            "shop/cart/0": partition(3, {"queue": 2}),
            "shop/cart/1": partition(4, {"in_flight": 1}),
        },
        telemetry=Telemetry(),
        committer=SimpleNamespace(
            commits=6,
            groups=2,
            unknown=0,
            fenced=0,
            gaps=0,
            busy_s=0.5,
            trouble=lambda: Trouble(9.0, "the disk is full"),
        ),
        unanswered_of_clients=lambda: 9,
        threads_abandoned=0,
        loop_blocked={"shop/cart": (2, 4.5)},
        lending=None,
        urgency=SimpleNamespace(learned=lambda function: Learned(1.0, 0.5, [("shop/stock", 2.0)])),
    )
    router = SimpleNamespace(
        frames_in=1, client_count=2, links_lost=3, refusals={("shop/cart", "not_owner"): 8}
    )
    functions = {"shop/cart": SimpleNamespace(name="shop/cart", binding=None)}
    served = SimpleNamespace(
        host=host,
        router=router,
        functions=functions,
        binding="static",
        quarantined={"shop/cart/3": "damaged"},
        scaling=None,
    )
    return cast(ServedWorker, served), host


def samples(of: ServedWorker) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(exposition(of).decode())
        for sample in family.samples
    }


CART = (("function", "shop/cart"),)


def test_every_metric_of_the_list_is_told_with_its_kind_and_help() -> None:
    served, host = worker()
    host.telemetry.of("shop/cart")

    told = {
        family.name: (family.type, family.documentation)
        for family in text_string_to_metric_families(exposition(served).decode())
    }

    assert told == {each.name: (each.kind, each.help) for each in METRICS}


def test_labels_are_those_of_the_list() -> None:
    served, host = worker()
    host.telemetry.of("shop/cart").latency.observe(1)
    named = {each.name: set(each.labels) for each in METRICS}

    for family in text_string_to_metric_families(exposition(served).decode()):
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == named[family.name]


def test_partitions_of_one_function_are_added_up() -> None:
    told = samples(worker()[0])

    assert told["sublet_messages_total", CART] == 7
    assert told["sublet_queued", CART] == 10
    assert told["sublet_staged_bytes", CART] == 14
    assert told["sublet_rows_waiting", CART] == 6
    assert told["sublet_snapshot_bytes", CART] == 22
    assert told["sublet_partitions", CART] == 2
    assert told["sublet_cache_bytes", CART] == 200


def test_the_watermark_is_that_of_the_partition_furthest_behind() -> None:
    served, host = worker()
    assert samples(served)["sublet_watermark_seconds", CART] == 3

    host.partitions["shop/cart/0"].partition.progress.watermark_ms = BEGINNING_MS
    assert ("sublet_watermark_seconds", CART) not in samples(served)


def test_totals_do_not_fall_when_a_partition_moves_away() -> None:
    served, host = worker()
    before = samples(served)

    gone = host.partitions.pop("shop/cart/1")
    host.telemetry.partition_left("shop/cart", gone.partition)
    after = samples(served)

    for name in ("sublet_messages_total", "sublet_retries_total"):
        assert after[name, CART] == before[name, CART]
    assert after["sublet_partitions", CART] == 1
    refused = ("sublet_refused_total", (*CART, ("reason", "in_flight")))
    assert after[refused] == before[refused] == 1


def test_refusals_are_told_by_reason() -> None:
    told = samples(worker()[0])

    assert {
        dict(labels)["reason"]: value
        for (name, labels), value in told.items()
        if name == "sublet_refused_total"
    } == {"queue": 2, "in_flight": 1, "not_owner": 8}


def test_times_are_told_in_seconds_by_stage() -> None:
    served, host = worker()
    host.telemetry.span_done(
        SpanTimes("shop/cart", "shop/cart/0", "~c", 1, 3, 0, 1, 2, 0, 4, 20), -5.0, 0
    )
    told = samples(served)

    def stage(name: str) -> float:
        labels = (*CART, ("stage", name))
        return told["sublet_stage_seconds_sum", labels]

    assert told["sublet_latency_seconds_count", CART] == 3
    assert abs(told["sublet_latency_seconds_sum", CART] - 3 * 0.027) < 1e-9
    assert abs(stage("committing") - 0.06) < 1e-9
    assert told["sublet_laxity_seconds_bucket", (*CART, ("le", "0"))] == 3
    assert told["sublet_laxity_seconds_bucket", (*CART, ("le", "-0.01"))] == 0


def test_groups_of_commits_are_told_by_time_and_size() -> None:
    served, host = worker()
    host.telemetry.group_committed(30.0, 4)
    told = samples(served)

    assert told["sublet_commit_seconds_count", ()] == 1
    assert told["sublet_commit_seconds_bucket", (("le", "0.025"),)] == 0
    assert told["sublet_commit_seconds_bucket", (("le", "0.05"),)] == 1
    assert told["sublet_commit_size_sum", ()] == 4


def test_learned_costs_are_told_by_part() -> None:
    told = samples(worker()[0])

    costs = {
        dict(labels)["part"]: value
        for (name, labels), value in told.items()
        if name == "sublet_cost_seconds"
    }
    assert costs == {"fixed": 0.001, "message": 0.0005, "path": 0.002}


# Leases


def lending() -> Any:
    stats = LeaseStats()
    stats.lent, stats.lent_partial, stats.messages = 9, 2, 90
    stats.returned, stats.declined, stats.expired, stats.revoked = 5, 2, 1, 1
    stats.late_returns, stats.local_only, stats.partials_merged = 1, 3, 2
    stats.states_sent, stats.states_known = 40, 50
    return SimpleNamespace(
        lessor=SimpleNamespace(
            open=[1, 2, 3],
            stats={"shop/cart": stats},
            policies={"shop/cart": AutoBinding()},
        ),
        lessee=SimpleNamespace(accepted=7, declined=4),
        guests_waiting=20,
        guests_running=10,
        states=SimpleNamespace(bytes=1_000),
    )


def lending_worker() -> tuple[ServedWorker, Any]:
    served, host = worker()
    host.lending = lending()
    served.binding = "auto:verdicts=2"
    return served, host


def test_who_lends_nothing_says_so_and_counts_nothing() -> None:
    served, _ = worker()
    told = samples(served)

    info = (("choice", "static"), *CART, ("policy", "static"))
    assert told["sublet_binding_info", info] == 1
    assert not [name for name, _ in told if name.startswith(("sublet_leases", "sublet_guest"))]
    assert leases_of(served) == {}


def test_leases_are_told_by_function_and_end() -> None:
    told = samples(lending_worker()[0])

    assert {
        dict(labels)["end"]: value
        for (name, labels), value in told.items()
        if name == "sublet_leases_total"
    } == {"returned": 5, "declined": 2, "expired": 1, "revoked": 1}
    for name, value in {
        "leases_partial": 2,
        "messages_lent": 90,
        "messages_local_only": 3,
        "lease_returns_late": 1,
        "partials_merged": 2,
        "lease_states_sent": 40,
        "lease_states_known": 50,
    }.items():
        assert told[f"sublet_{name}_total", CART] == value


def test_guests_are_told_by_worker() -> None:
    told = samples(lending_worker()[0])

    assert told["sublet_leases_open", ()] == 3
    assert told["sublet_guest_messages", (("state", "waiting"),)] == 20
    assert told["sublet_guest_messages", (("state", "running"),)] == 10
    assert told["sublet_guests_total", (("answer", "accepted"),)] == 7
    assert told["sublet_guests_total", (("answer", "declined"),)] == 4
    assert told["sublet_guest_cache_bytes", ()] == 1_000


def test_labels_of_leases_are_those_of_the_list() -> None:
    served, host = lending_worker()
    host.telemetry.of("shop/cart").leases.observe(1)
    named = {each.name: set(each.labels) for each in METRICS}

    for family in text_string_to_metric_families(exposition(served).decode()):
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == named[family.name]


def test_what_auto_follows_is_told_with_the_reason() -> None:
    served, host = lending_worker()
    info = (("choice", "accept-and-check"), *CART, ("policy", "auto:verdicts=2"))
    assert samples(served)["sublet_binding_info", info] == 1

    policy = host.lending.lessor.policies["shop/cart"]
    policy.choice, policy.reason = "static", "static: peers have as much to do"
    told = leases_of(served)["shop/cart"]

    assert (told.binding, told.choice) == ("auto:verdicts=2", "static")
    assert told.reason == "static: peers have as much to do"
    assert (told.counts["lent"], told.counts["states_known"]) == (9, 50)


async def test_the_leader_of_the_scaling_tells_of_workers_decisions_and_money() -> None:
    world = World(lambda: {Slot.WORKERS: "fixed:workers=3"}, price_worker_hour=3.6)
    await world.join("w0")
    await world.join("w1")
    world.refuses_to_start = {"1-2"}
    await world.seconds(4)
    served, _ = worker()
    served.scaling = world.nodes["w0"].scaling
    told = samples(served)

    assert told["sublet_scaling_leads", ()] == 1
    assert told["sublet_utilisation", ()] == 0.5
    assert told["sublet_workers", (("state", "serving"),)] == 3
    assert told["sublet_workers", (("state", "starting"),)] == 0
    assert told["sublet_workers_wanted", ()] == 3
    done = (("action", "add-workers"), ("outcome", "done"), ("slot", "workers"))
    assert told["sublet_scaling_decisions_total", done] == 1
    assert told["sublet_spend_total", ()] > 0

    served.scaling = world.nodes["w1"].scaling
    told = samples(served)
    assert told["sublet_scaling_leads", ()] == 0
    assert not [name for name, _ in told if name == "sublet_workers"]
