"""Samples of workers: they merge, they fit into a message, and they stay what they are."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from sublet.runtime.observability import telemetry
from sublet.scheduler.scaling.signals import (
    FUNCTIONS_MAX,
    LAXITY_BOUNDS_MS,
    OUTSIDE,
    REST,
    SAMPLE_BYTES_MAX,
    TRAFFIC_MAX,
    TURN_BOUNDS_MS,
    FunctionSignals,
    WorkerSample,
    busiest,
    cost_ms,
    decode_sample,
    encode_sample,
    merged,
    observe,
    quantile,
)


def signals(function: str = "shop/cart", **fields: object) -> FunctionSignals:
    return FunctionSignals(function=function, **fields)  # type: ignore[arg-type]


def test_counts_of_workers_are_summed_by_source_and_target() -> None:
    one = signals(arrived={OUTSIDE: 3, "shop/web": 1}, done={OUTSIDE: 2}, sent={"shop/stock": 4})
    other = signals(arrived={OUTSIDE: 2}, done={"shop/web": 1}, sent={"shop/stock": 1}, refused=7)

    both = merged([one, other])

    assert both is not None
    assert both.arrived == {OUTSIDE: 5, "shop/web": 1}
    assert both.done == {OUTSIDE: 2, "shop/web": 1}
    assert both.sent == {"shop/stock": 5}
    assert both.refused == 7


def test_histograms_are_added_bucket_by_bucket() -> None:
    both = merged([signals(turn=[1, 2, 3], laxity=[1]), signals(turn=[10, 0, 1], laxity=[2])])

    assert both is not None
    assert list(both.turn) == [11, 2, 4]
    assert list(both.laxity) == [3]


def test_of_laxities_the_smallest_counts() -> None:
    assert merged([signals(laxity_ms=30.0), signals(laxity_ms=-2.0), signals()]) is not None
    both = merged([signals(laxity_ms=30.0), signals(laxity_ms=-2.0), signals()])
    assert both is not None
    assert both.laxity_ms == -2.0
    idle = merged([signals(), signals()])
    assert idle is not None
    assert idle.laxity_ms == inf


def test_costs_count_by_what_was_done_and_paths_by_the_longest() -> None:
    both = merged(
        [
            signals(done={OUTSIDE: 30}, message_ms=1.0, fixed_ms=3.0, path_ms=5.0, lag_ms=1.0),
            signals(done={OUTSIDE: 10}, message_ms=5.0, fixed_ms=7.0, path_ms=2.0, lag_ms=9.0),
        ]
    )

    assert both is not None
    assert abs(both.message_ms - 2.0) < 1e-6
    assert abs(both.fixed_ms - 4.0) < 1e-6
    assert (both.path_ms, both.lag_ms) == (5.0, 9.0)


def test_nothing_merges_to_nothing() -> None:
    assert merged([]) is None


COUNTS = st.dictionaries(st.sampled_from(["", "a/f", "a/g"]), st.integers(0, 1000))
PARTS = st.lists(
    st.builds(
        signals,
        arrived=COUNTS,
        done=COUNTS,
        sent=COUNTS,
        waiting=st.integers(0, 100),
        waiting_ms=st.floats(0, 1e6),
        laxity_ms=st.floats(-1e6, 1e6),
        turn=st.lists(st.integers(0, 9), min_size=16, max_size=16),
        loads=st.dictionaries(st.integers(0, 9), st.floats(0, 1)),
    ),
    min_size=2,
    max_size=5,
)


@given(parts=PARTS)
def test_merging_in_steps_gives_the_same(parts: list[FunctionSignals]) -> None:
    at_once = merged(parts)
    first = merged(parts[:2])
    assert first is not None
    in_steps = merged([first, *parts[2:]])

    assert at_once is not None
    assert in_steps is not None
    for name in ("arrived", "done", "sent", "waiting", "laxity_ms", "turn"):
        assert getattr(at_once, name) == getattr(in_steps, name)
    assert abs(at_once.waiting_ms - in_steps.waiting_ms) <= 1e-6 * (1 + at_once.waiting_ms)


def test_a_message_costs_its_part_of_the_run_it_was_in() -> None:
    assert cost_ms(fixed_ms=2.0, message_ms=0.5, runs=10, done=100) == 0.7
    assert cost_ms(fixed_ms=2.0, message_ms=0.5, runs=0, done=0) == 2.5


def test_a_quantile_is_the_bound_of_its_bucket() -> None:
    counts = [0] * (len(TURN_BOUNDS_MS) + 1)
    observe(counts, TURN_BOUNDS_MS, 3.0, times=94)
    observe(counts, TURN_BOUNDS_MS, 240.0, times=6)

    assert quantile(counts, TURN_BOUNDS_MS, 0.5) == 5
    assert quantile(counts, TURN_BOUNDS_MS, 0.95) == 250
    assert quantile([], TURN_BOUNDS_MS, 0.95) == 0
    observe(counts, TURN_BOUNDS_MS, 1e6, times=1_000)
    assert quantile(counts, TURN_BOUNDS_MS, 0.95) == TURN_BOUNDS_MS[-1]


def test_buckets_are_those_of_telemetry() -> None:
    assert TURN_BOUNDS_MS == telemetry.LATENCY_BOUNDS_MS
    assert LAXITY_BOUNDS_MS == telemetry.LAXITY_BOUNDS_MS


def test_only_the_busiest_functions_are_named_and_the_rest_is_summed() -> None:
    many = [
        signals(f"app/f{number}", arrived={OUTSIDE: 1}, loads={0: number / 1000})
        for number in range(FUNCTIONS_MAX + 10)
    ]

    named = busiest(many)

    assert len(named) == FUNCTIONS_MAX
    assert named[0].function == f"app/f{FUNCTIONS_MAX + 9}"
    assert named[-1].function == REST
    assert sum(sum(each.arrived.values()) for each in named) == len(many)
    assert abs(sum(sum(each.loads.values()) for each in named) - sum(range(74)) / 1000) < 1e-9


def full_sample(functions: int, name: str) -> WorkerSample:
    return WorkerSample(
        worker="w-01",
        number=1,
        interval_ms=1000.0,
        utilisation=0.5,
        functions=[
            signals(
                f"{name}-{number}",
                tenant="some-tenant",
                arrived={OUTSIDE: 1234, f"{name}-other": 123},
                done={OUTSIDE: 1234, f"{name}-other": 123},
                sent={OUTSIDE: 1234, f"{name}-other": 123},
                turn=[number] * 16,
                laxity=[number] * 15,
                loads={number: 0.25},
            )
            for number in range(functions)
        ],
        traffic=[(f"{name}/{number}", f"{name}-other/{number}", 1) for number in range(100)],
    )


def test_a_sample_comes_back_as_it_travelled() -> None:
    sample = full_sample(20, "shop/cart")
    again = decode_sample(encode_sample(sample))
    assert again.functions == sample.functions
    assert list(again.traffic) == [*sample.traffic][:TRAFFIC_MAX]


def test_a_sample_that_would_be_too_large_names_fewer_functions_and_counts_all() -> None:
    sample = full_sample(300, "some-application/some-function-with-a-name-that-is-rather-long")

    data = encode_sample(sample)

    assert len(data) <= SAMPLE_BYTES_MAX
    again = decode_sample(data)
    assert 8 <= len(again.functions) <= FUNCTIONS_MAX
    assert sum(each.arrived[OUTSIDE] for each in again.functions) == 300 * 1234
