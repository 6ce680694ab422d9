"""What is kept of messages that failed for good."""

from __future__ import annotations

import msgspec

from sublet.functions.retry import NO_RETRY, Retry
from sublet.runtime.partition.model.work import Failure
from sublet.runtime.partition.records.dead_letters import TRACEBACKS_MAX, DeadLetter
from sublet.runtime.protocol.frames import ErrorInfo, Kind
from sublet.statestore.contract import DEAD
from tests.unit.partition.harness import CLIENT, Owner, make_function

ERROR = ErrorInfo("handler_failed", "f raised ValueError: no (key 'a', f.py:3)")


def letters(owner: Owner) -> dict[str, DeadLetter]:
    return {
        id_: msgspec.msgpack.decode(record.value or b"", type=DeadLetter)
        for id_, record in owner.records(DEAD).items()
    }


def test_the_traceback_of_the_last_attempt_is_kept_and_no_other_is_made() -> None:
    owner = Owner(make_function(retry=Retry(attempts=2, backoff="10ms")))
    made: list[int] = []

    def failure(attempt: int) -> Failure:
        def traceback() -> str:
            made.append(attempt)
            return f"Traceback {attempt}"

        return Failure(ERROR, True, None, traceback)

    owner.arrive(1, ["a"], kind=Kind.SEND)
    owner.finish(failed={0: failure(1)})
    owner.settle()
    owner.pass_time(60_000)
    owner.finish(failed={0: failure(2)})
    owner.settle()

    (letter,) = letters(owner).values()
    assert (letter.error, letter.traceback) == (ERROR, "Traceback 2")
    assert made == [2]


def test_a_caller_who_is_told_needs_no_traceback() -> None:
    owner = Owner(make_function(retry=NO_RETRY))
    owner.arrive(1, ["a"])

    def traceback() -> str:
        raise AssertionError("nobody keeps it")

    owner.finish(failed={0: Failure(ERROR, False, None, traceback)})
    owner.settle()

    assert owner.replies() == [(1, "handler_failed")]


def test_where_many_fail_at_once_only_some_keep_their_tracebacks() -> None:
    owner = Owner(make_function(retry=NO_RETRY))
    count = TRACEBACKS_MAX + 10
    failed = Failure(ERROR, False, None, lambda: "Traceback")
    for first in (1, count + 1):
        owner.arrive(first, [f"k{number}" for number in range(count)], kind=Kind.SEND)
        while owner.runs:
            owner.finish(failed=dict.fromkeys(range(owner.runs[0].count), failed))
        owner.settle()

    kept = [bool(each.traceback) for each in letters(owner).values()]
    assert len(kept) == 2 * count
    assert sum(kept) == 2 * TRACEBACKS_MAX


def test_letters_of_earlier_workers_have_none() -> None:
    owner = Owner(make_function(retry=NO_RETRY))
    owner.arrive(1, ["a"], kind=Kind.SEND)
    owner.finish(failed={0: Failure(ERROR, False)})
    owner.settle()
    (letter,) = letters(owner).values()
    earlier = msgspec.msgpack.encode([letter.message, letter.error, letter.at_ms])

    assert msgspec.msgpack.decode(earlier, type=DeadLetter) == letter
    assert CLIENT in letter.message.id
