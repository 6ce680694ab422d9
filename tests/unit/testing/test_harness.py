"""The harness shows what functions do, and nothing that they do not."""

from __future__ import annotations

import asyncio
import gc
from datetime import UTC, datetime, timedelta

import pytest

from sublet import (
    App,
    Context,
    DeadlineExceededError,
    HandlerError,
    HandlerTimeoutError,
    IdempotencyConflictError,
    KeyRejectedError,
    OverloadedError,
    PayloadError,
    RejectedError,
    TooLargeError,
    UnknownFunctionError,
)
from sublet.runtime.config.limits import Limits
from sublet.testing import DeadLetter, Harness, Reply, Sent, StuckError, Timer
from tests.unit.testing import apps
from tests.unit.testing.apps import Move


@pytest.fixture
def harness(sublet_harness: type[Harness]) -> Harness:
    return sublet_harness(apps.bank, apps.odd)


# Calls and sends


def test_a_call_returns_the_reply_as_its_declared_type(harness: Harness) -> None:
    assert harness.call(apps.account, "ada", Move(10)) == 10
    assert harness.call("bank/account", "ada", {"amount": 5}) == 15


def test_everything_that_a_call_causes_now_has_happened_when_it_returns(harness: Harness) -> None:
    harness.call(apps.account, "ada", Move(10))

    assert harness.state(apps.turnover, "all") == 10


def test_a_sent_message_is_handled_when_the_test_looks(harness: Harness) -> None:
    harness.send(apps.account, "ada", Move(10))
    harness.send_many(apps.account, ["ada", "bob"], [Move(1), Move(2)])

    assert harness.state(apps.account, "ada") == 11
    assert harness.states(apps.account) == {"ada": 11, "bob": 2}


def test_what_was_sent_before_a_call_has_happened_before_it(harness: Harness) -> None:
    harness.send(apps.account, "ada", Move(10))
    harness.send(apps.account, "ada", Move(4, "bob"))

    assert harness.call(apps.account, "bob", Move(0)) == 4


def test_many_calls_are_answered_in_their_order(harness: Harness) -> None:
    keys = [f"k{number}" for number in range(100)]

    replies = harness.call_many(apps.account, keys, [Move(number) for number in range(100)])

    assert replies == list(range(100))


def test_many_calls_return_errors_in_the_places_of_their_replies(harness: Harness) -> None:
    replies = harness.call_many(
        apps.account, ["ada", "ada"], [Move(-1), Move(3)], return_errors=True
    )

    assert isinstance(replies[0], RejectedError)
    assert replies[1] == 3
    with pytest.raises(RejectedError, match="ada has only 3"):
        harness.call_many(apps.account, ["ada", "ada"], [Move(-9), Move(3)])


def test_more_messages_than_a_worker_takes_at_once_all_arrive_now(harness: Harness) -> None:
    before_ms = harness.now_ms

    harness.send_many(apps.account, ["ada"] * 20_000, [Move(1)] * 20_000)

    assert harness.state(apps.account, "ada") == 20_000
    assert harness.now_ms == before_ms


def test_messages_that_wait_for_their_turn_survive_a_crash() -> None:
    with Harness(apps.bank, limits=Limits(client_credit=10)) as harness:
        harness.crash(at_commit=3)
        for _ in range(5):
            harness.send_many(apps.account, ["ada"] * 7, [Move(1)] * 7)

        assert harness.state(apps.account, "ada") == 35


def test_a_handler_that_awaits_calls_gets_their_replies(harness: Harness) -> None:
    harness.call(apps.account, "ada", Move(10))

    assert harness.call(apps.transfer, "ada", Move(4, "bob")) == [6, 4]
    assert harness.sent_to(apps.account) == [Move(-4), Move(4)]
    assert [each.is_call for each in harness.sent if each.function == "bank/account"] == [True] * 2


def test_blocking_handlers_and_stateless_functions_run_in_place(harness: Harness) -> None:
    assert harness.call(apps.blocking, message="abc") == "ABC"
    assert harness.call_many(apps.blocking, None, ["a", "b"]) == ["A", "B"]


def test_a_harness_works_inside_a_running_event_loop() -> None:
    async def test() -> int:
        with Harness(apps.bank) as harness:
            balance: int = harness.call(apps.account, "ada", Move(10))
            await asyncio.sleep(0)
            return balance

    assert asyncio.run(test()) == 10


def test_a_harness_that_is_just_dropped_leaves_no_warning() -> None:
    harness = Harness(apps.bank, apps.odd)
    harness.send(apps.waits_for_ever)
    harness.settle()

    del harness
    gc.collect()


def test_a_closed_harness_says_so(harness: Harness) -> None:
    harness.close()

    with pytest.raises(RuntimeError, match="the harness is closed"):
        harness.call(apps.account, "ada", Move(1))
    with pytest.raises(RuntimeError, match="the harness is closed"):
        harness.settle()


# Errors


def test_a_handler_s_exception_is_the_cause_of_the_error(harness: Harness) -> None:
    with pytest.raises(HandlerError, match="odd/broken raised LookupError: no") as caught:
        harness.call(apps.broken, "k", "no")

    cause = caught.value.__cause__
    assert isinstance(cause, LookupError)
    assert cause.__traceback__ is not None


def test_the_cause_is_found_through_calls(harness: Harness) -> None:
    with pytest.raises(HandlerError) as caught:
        harness.call(apps.calls_broken, "k")

    chain = []
    error: BaseException | None = caught.value
    while error is not None:
        chain.append(type(error))
        error = error.__cause__
    assert chain == [HandlerError, HandlerError, LookupError]


def test_requests_that_no_client_could_make_are_refused_in_the_same_way(harness: Harness) -> None:
    with pytest.raises(UnknownFunctionError, match="there is no function 'bank/nothing'; known: "):
        harness.call("bank/nothing")
    with pytest.raises(UnknownFunctionError, match="known: bank/account"):
        harness.call(len)  # type: ignore[arg-type]
    with pytest.raises(KeyRejectedError, match="allowed: 1024"):
        harness.send(apps.account, "k" * 2_000, Move(1))
    with pytest.raises(TooLargeError):
        harness.send(apps.broken, "k", "x" * 5_000_000)
    with pytest.raises(RejectedError, match="2 keys but 1 messages"):
        harness.send_many(apps.account, ["a", "b"], [Move(1)])
    with pytest.raises(RejectedError, match=r"300 bytes; allowed: 1\.\.256"):
        harness.call(apps.account, "ada", Move(1), idempotency_key="k" * 300)
    with pytest.raises(PayloadError, match="bank/account"):
        harness.call(apps.account, "ada", {"amount": "much"})


def test_a_harness_refuses_what_it_cannot_run() -> None:
    with pytest.raises(ValueError, match="at least one app"):
        Harness()
    with pytest.raises(ValueError, match="no time zone"):
        Harness(apps.bank, start=datetime(2026, 1, 1))  # noqa: DTZ001
    with pytest.raises(ValueError, match="runs_max is 0; allowed: 1 or more"):
        Harness(apps.bank, runs_max=0)


def test_a_full_queue_refuses_until_there_is_room() -> None:
    with Harness(apps.bank, limits=Limits(queue_max=10)) as harness:
        for _ in range(30):
            harness.send(apps.account, "ada", Move(1))

        harness.advance("1s")

        assert harness.state(apps.account, "ada") == 30


def test_a_queue_that_stays_full_is_an_error() -> None:
    app = App("slow", partitions=1)

    @app.function(timeout=None)
    async def never(ctx: Context) -> None:
        await asyncio.get_running_loop().create_future()

    with Harness(app, limits=Limits(queue_max=1, open_calls_max=1)) as harness:
        harness.send(never, "a")
        harness.send(never, "b")
        harness.send(never, "c")

        with pytest.raises(OverloadedError):
            harness.call(never, "d")


# Time


def test_time_stands_still_until_it_is_moved(harness: Harness) -> None:
    start_ms = harness.now_ms

    harness.call(apps.account, "ada", Move(10))

    assert harness.now_ms == start_ms
    assert harness.now == datetime(2026, 1, 1, tzinfo=UTC)
    harness.advance("1h")
    assert harness.now == datetime(2026, 1, 1, 1, tzinfo=UTC)


def test_a_call_lets_the_time_pass_that_its_handler_waits_for(harness: Harness) -> None:
    start_ms = harness.now_ms

    assert harness.call(apps.sleeper, "k", 7.5) == start_ms
    assert harness.now_ms == start_ms + 7_500
    assert harness.state(apps.sleeper, "k") == {"woke_ms": 7_500}


def test_timers_show_what_is_to_come_and_fire_in_order(harness: Harness) -> None:
    harness.send(apps.ticks, "a")
    harness.advance("10s")
    harness.send(apps.ticks, "b")

    assert harness.timers() == [
        Timer(timedelta(seconds=50), "odd/ticks", "a", None),
        Timer(timedelta(seconds=60), "odd/ticks", "b", None),
    ]
    harness.advance("50s")
    assert (harness.state(apps.ticks, "a"), harness.state(apps.ticks, "b")) == (2, 1)


def test_a_delay_counts_from_when_a_handler_asks_for_it(harness: Harness) -> None:
    start_ms = harness.now_ms

    assert harness.call(apps.slow_timers, "k") == [start_ms, start_ms]

    assert harness.now_ms == start_ms + 2_000
    assert [(each.due_in, each.message) for each in harness.timers()] == [
        (timedelta(seconds=1), "first"),
        (timedelta(seconds=1.5), "second"),
    ]
    harness.advance("1.5s")
    assert harness.state(apps.noted, "k") == ["first", "second"]


def test_the_clock_of_a_handler_stands_still_while_others_run(
    sublet_harness: type[Harness],
) -> None:
    app = App("one", partitions=1)

    @app.function(state=int)
    async def looks(ctx: Context, wait_s: float) -> list[int]:
        before_ms = ctx.now_ms
        await asyncio.sleep(wait_s)
        ctx.emit("seen", [before_ms, ctx.now_ms])
        return [before_ms, ctx.now_ms]

    harness = sublet_harness(app)
    start_ms = harness.now_ms
    harness.send(looks, "slow", 2.0)
    harness.advance("1s")

    assert harness.call(looks, "quick", 0.0) == [start_ms + 1_000] * 2
    harness.advance("1s")
    assert harness.emitted("seen")[-1] == [start_ms] * 2


def test_a_retry_waits_from_when_its_attempt_failed(harness: Harness) -> None:
    start_ms = harness.now_ms

    assert harness.call(apps.slow_at_first, "k") == start_ms + 2_000 + 50


def test_a_timer_fires_at_its_time_however_far_the_clock_is_moved(harness: Harness) -> None:
    harness.send(apps.ticks, "a")

    harness.advance("1d")

    assert harness.state(apps.ticks, "a") == 1 + 24 * 60
    fired = [step.at_ms for step in harness.trace if step.what == "run odd/ticks[a]"]
    assert fired == [minute * 60_000 for minute in range(24 * 60 + 1)]


def test_months_pass_without_a_step_for_each_of_their_minutes(harness: Harness) -> None:
    harness.call(apps.account, "ada", Move(10))
    before = len(harness.trace)

    harness.advance("3650d")

    assert len(harness.trace) < before + 10
    assert harness.call(apps.account, "ada", Move(10)) == 20


def test_a_call_whose_deadline_passes_is_interrupted(harness: Harness) -> None:
    start_ms = harness.now_ms

    with pytest.raises(DeadlineExceededError, match=r"odd/sleeper\[k\] did not reply within"):
        harness.call(apps.sleeper, "k", 5.0, deadline="2s")

    assert harness.now_ms == start_ms + 2_000
    harness.advance("10s")
    assert harness.state(apps.sleeper, "k") == {}
    harness.send(apps.sleeper, "k", 5.0, deadline="2s")
    harness.advance("5s")
    assert harness.state(apps.sleeper, "k") != {}


def test_a_handler_sees_the_time_that_is_left(harness: Harness) -> None:
    assert harness.call(apps.time_left, "k", deadline="2s") == 2_000
    assert harness.call(apps.time_left, "k") is None


def test_a_handler_s_timeout_counts_virtual_time(harness: Harness) -> None:
    with pytest.raises(HandlerTimeoutError, match="60000 ms"):
        harness.call(apps.sleeper, "k", 3_600.0)


# Failures


def test_a_failed_message_is_tried_again_when_its_time_has_come(harness: Harness) -> None:
    harness.send(apps.flaky, "k", 2)

    assert harness.state(apps.flaky, "k") == []
    harness.advance("1s")
    assert harness.state(apps.flaky, "k") == []
    harness.advance("2s")
    assert harness.state(apps.flaky, "k") == [3]


def test_a_call_waits_for_the_retries(harness: Harness) -> None:
    start_ms = harness.now_ms

    assert harness.call(apps.flaky, "k", 2) == 3
    assert harness.now_ms == start_ms + 3_000


def test_what_fails_for_good_is_a_dead_letter(harness: Harness) -> None:
    harness.send(apps.flaky, "k", 9)
    harness.advance("1m")

    (letter,) = harness.dead_letters()

    assert isinstance(letter, DeadLetter)
    assert letter[:3] == ("odd/flaky", "k", 9)
    assert letter.attempts == 3
    assert isinstance(letter.error, HandlerError)
    assert isinstance(letter.error.__cause__, LookupError)


def test_a_dead_letter_that_nobody_looked_at_fails_the_test() -> None:
    with pytest.raises(HandlerError) as caught, Harness(apps.odd) as harness:
        harness.send(apps.broken, "k", "oh")

    assert isinstance(caught.value.__cause__, LookupError)
    assert "has not looked at dead_letters()" in caught.value.__notes__[0]


def test_a_failure_that_waits_for_its_retry_fails_the_test() -> None:
    with pytest.raises(HandlerError) as caught, Harness(apps.odd) as harness:
        harness.send(apps.flaky, "k", 1)

    assert "waits for attempt 2" in caught.value.__notes__[0]


def test_nothing_is_raised_at_the_end_of_a_test_that_fails_already() -> None:
    with pytest.raises(ZeroDivisionError), Harness(apps.odd) as harness:  # noqa: PT012
        harness.send(apps.broken, "k", "oh")
        raise ZeroDivisionError


def test_strict_can_be_switched_off() -> None:
    with Harness(apps.odd, strict=False) as harness:
        harness.send(apps.broken, "k", "oh")


def test_runs_can_be_made_to_fail(harness: Harness) -> None:
    harness.fail_next(apps.account, OSError("disk"), times=2, key="ada")

    assert harness.call(apps.account, "bob", Move(1)) == 1
    assert harness.call(apps.account, "ada", Move(1)) == 1
    runs = [step.what for step in harness.trace if step.what == "run bank/account[ada]"]
    assert len(runs) == 3


def test_a_run_that_fails_after_its_work_leaves_no_trace_of_it(harness: Harness) -> None:
    harness.fail_next(apps.account, after=True)
    harness.send(apps.account, "ada", Move(5))

    assert harness.state(apps.account, "ada") == 0
    assert harness.sent == []
    harness.advance("1s")
    assert harness.state(apps.account, "ada") == 5
    assert harness.emitted("moves", Move) == [Move(5)]


def test_async_handlers_can_be_made_to_fail_too(harness: Harness) -> None:
    harness.fail_next(apps.transfer, KeyError)
    harness.fail_next(apps.transfer, ValueError, after=True)
    harness.call(apps.account, "ada", Move(10))

    assert harness.call(apps.transfer, "ada", Move(4, "bob")) == [6, 4]
    assert harness.state(apps.account, "ada") == 6


def test_an_injected_failure_is_no_surprise_at_the_end() -> None:
    with Harness(apps.odd) as harness:
        harness.fail_next(apps.flaky)
        harness.send(apps.flaky, "k", 0)


def test_a_commit_without_an_answer_is_sent_again(harness: Harness) -> None:
    for applied in (False, True):
        harness.fail_commits(2, applied=applied)

        harness.call(apps.account, "ada", Move(10))

    assert harness.state(apps.account, "ada") == 20
    assert harness.state(apps.turnover, "all") == 20
    assert harness.emitted("moves", Move) == [Move(10), Move(10)]


def test_a_timer_that_is_due_waits_for_a_store_that_is_away(harness: Harness) -> None:
    harness.send(apps.ticks, "a")
    harness.advance("59s")
    harness.fail_commits(3)

    harness.advance("30s")

    assert harness.state(apps.ticks, "a") == 2


def test_faults_refuse_what_makes_no_sense(harness: Harness) -> None:
    with pytest.raises(ValueError, match="times is 0"):
        harness.fail_next(apps.account, times=0)
    with pytest.raises(ValueError, match="times is 0"):
        harness.fail_commits(0)
    with pytest.raises(ValueError, match="at_commit is -1"):
        harness.crash(at_commit=-1)


# Crashes


def test_a_crash_loses_nothing_that_was_committed(harness: Harness) -> None:
    harness.call(apps.account, "ada", Move(10))
    harness.send(apps.ticks, "t")
    harness.send(apps.flaky, "k", 1)
    harness.settle()

    harness.crash()

    assert harness.state(apps.account, "ada") == 10
    assert [timer.key for timer in harness.timers()] == ["t"]
    harness.advance("1m")
    assert harness.state(apps.ticks, "t") == 2
    assert harness.state(apps.flaky, "k") == [2]


@pytest.mark.parametrize("applied", [False, True])
@pytest.mark.parametrize("at_commit", range(1, 13))
def test_effects_happen_once_wherever_the_worker_crashes(at_commit: int, applied: bool) -> None:
    with Harness(apps.bank) as harness:
        harness.call(apps.account, "ada", Move(10))
        harness.crash(at_commit=at_commit, applied=applied)

        assert harness.call(apps.transfer, "ada", Move(4, "bob")) == [6, 4]
        harness.send(apps.account, "ada", Move(1, "bob"))

        assert harness.states(apps.account) == {"ada": 5, "bob": 5}
        assert harness.state(apps.turnover, "all") == 10 - 4 + 4 + 1 + 1
        amounts = [move.amount for move in harness.emitted("moves", Move)]
        assert sorted(amounts) == [-4, 1, 1, 4, 10]
        harness.advance("1m")
        harness.assert_idle()
        assert [step.what for step in harness.trace].count("crash") == 1


def test_the_owner_s_second_crash_is_survived_too(harness: Harness) -> None:
    harness.crash(at_commit=1, applied=True)
    harness.crash(at_commit=2)
    harness.crash(at_commit=3, applied=True)

    assert harness.call(apps.account, "ada", Move(10)) == 10
    assert sum(step.what == "crash" for step in harness.trace) == 3


def test_an_idempotency_key_gives_one_effect_and_one_reply(harness: Harness) -> None:
    for _ in range(2):
        assert harness.call(apps.account, "ada", Move(10), idempotency_key="order-1") == 10
        harness.crash()

    with pytest.raises(IdempotencyConflictError):
        harness.call(apps.account, "ada", Move(11), idempotency_key="order-1")
    harness.advance("25h")
    assert harness.call(apps.account, "ada", Move(10), idempotency_key="order-1") == 20


# Looking


def test_sends_emits_and_replies_are_on_record(harness: Harness) -> None:
    harness.call(apps.account, "ada", Move(10))
    harness.call(apps.account, "ada", Move(3, "bob"))

    assert harness.sent == [
        Sent("bank/turnover", "all", 10, "bank/account"),
        Sent("bank/account", "bob", Move(3), "bank/account"),
        Sent("bank/turnover", "all", 3, "bank/account"),
        Sent("bank/turnover", "all", 3, "bank/account"),
    ]
    assert harness.sent_to(apps.account, "bob") == [Move(3)]
    assert harness.sent_to(apps.account, "eve") == []
    assert harness.emitted("moves")[0] == {"amount": 10, "to": ""}
    assert harness.emitted("nothing") == []
    assert harness.replies == [
        Reply("bank/account", "ada", 10, None),
        Reply("bank/account", "ada", 7, None),
    ]


def test_a_failed_call_is_on_record_with_its_error(harness: Harness) -> None:
    with pytest.raises(RejectedError):
        harness.call(apps.account, "ada", Move(3, "bob"))

    (reply,) = harness.replies
    assert isinstance(reply.error, RejectedError)


def test_a_message_that_waits_is_not_idle(harness: Harness) -> None:
    harness.assert_idle()
    harness.send(apps.flaky, "k", 1)

    with pytest.raises(AssertionError, match=r"odd/flaky\[k\] waits for attempt 2 after: .*Lookup"):
        harness.assert_idle()
    harness.advance("1s")
    harness.assert_idle()


def test_timers_to_come_are_idle(harness: Harness) -> None:
    harness.send(apps.ticks, "k")

    harness.assert_idle()


def test_a_call_that_can_never_be_answered_says_so(harness: Harness) -> None:
    with pytest.raises(StuckError, match=r"odd/waits_for_ever\[k\] never answers: .* has begun"):
        harness.call(apps.waits_for_ever, "k")
    with pytest.raises(AssertionError, match=r"waits_for_ever\[k\] did not reply"):
        harness.assert_idle()


def test_functions_that_never_come_to_rest_are_stopped() -> None:
    with Harness(apps.odd, runs_max=100, strict=False) as harness:
        harness.send(apps.echo_for_ever, "k", 0)

        with pytest.raises(StuckError, match="still busy after 100 runs"):
            harness.settle()


def test_a_harness_that_is_too_busy_can_still_be_closed() -> None:
    harness = Harness(apps.bank, runs_max=100, limits=Limits(client_credit=50))
    harness.send_many(apps.account, ["ada"] * 4_000, [Move(1)] * 4_000)
    with pytest.raises(StuckError, match="still busy after 100 runs"):
        harness.settle()

    harness.close()


def test_a_handler_that_wakes_for_ever_is_stopped() -> None:
    app = App("restless")

    @app.function(timeout=None)
    async def restless(ctx: Context) -> None:
        for _ in range(1_000):
            await asyncio.sleep(1)

    with (
        Harness(app, runs_max=100, strict=False) as harness,
        pytest.raises(StuckError, match="still busy after many waits"),
    ):
        harness.call(restless, "k")


def test_what_the_test_runner_raises_inside_a_handler_ends_the_test() -> None:
    app = App("hung", partitions=1)

    @app.function
    def hung(ctx: Context) -> None:
        pytest.fail("Timeout >60.0s")

    with Harness(app, strict=False) as harness, pytest.raises(pytest.fail.Exception):
        harness.call(hung, "k")


# Determinism


def run_of(seed: int) -> Harness:
    harness = Harness(apps.bank, seed=seed)
    keys = [f"k{number}" for number in range(20)]
    harness.send_many(apps.account, keys, [Move(10)] * 20)
    harness.send_many(apps.account, keys, [Move(3, "all")] * 20)
    harness.settle()
    return harness


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    assert run_of(seed).trace == run_of(seed).trace
    assert run_of(seed).trace_hash == run_of(seed).trace_hash


def test_other_seeds_give_other_orders_and_the_same_result() -> None:
    runs = [run_of(seed) for seed in range(6)]

    assert len({run.trace_hash for run in runs}) == 6
    assert all(run.states(apps.account) == runs[0].states(apps.account) for run in runs)


def test_messages_to_one_key_keep_their_order_under_every_seed() -> None:
    app = App("ordered", partitions=8)

    @app.function(state=list[int])
    def seen(ctx: Context, number: int) -> None:
        ctx.state.set([*ctx.state.get(), number])

    for seed in range(20):
        with Harness(app, seed=seed) as harness:
            for number in range(10):
                harness.send_many(seen, ["a", "b", "c"], [number] * 3)
            assert harness.states(seen) == {key: list(range(10)) for key in "abc"}
