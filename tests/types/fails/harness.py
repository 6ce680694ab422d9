"""Tests that expect what cannot be."""

from sublet import App, Context, Sum
from sublet.testing import FakeContext, Harness

app = App("fails")


@app.function
def count(ctx: Context[int], message: int) -> str:
    return str(message)


@app.function
def look(ctx: Context[Sum]) -> int:
    return 1


def calls(harness: Harness) -> None:
    # fails: mypy[arg-type] pyright[reportArgumentType]
    harness.call(count, "key", "1")
    # fails: mypy[arg-type] pyright[reportArgumentType]
    harness.call(count, "key")
    # fails: mypy[arg-type] pyright[reportArgumentType]
    harness.call(look, "key", 1)
    # fails: mypy[call-overload] pyright[reportCallIssue]
    harness.call(count, "key", 1, dedline="1s")
    # fails: mypy[arg-type] pyright[reportArgumentType]
    harness.call_many(count, ["key"], ["1"])
    # fails: mypy[arg-type] pyright[reportArgumentType]
    harness.send(count, "key", "1")
    # fails: mypy[arg-type] pyright[reportArgumentType]
    harness.send_many(count, ["key"], ["1"])
    # fails: mypy[assignment] pyright[reportAssignmentType]
    reply: int = harness.call(count, "key", 1)
    # fails: mypy[assignment] pyright[reportAssignmentType]
    state: str = harness.state(count, "key")
    # fails: mypy[assignment] pyright[reportAssignmentType]
    total: str = harness.state(look, "key")
    assert (reply, state, total) == (1, "1", "1")


def handlers_alone() -> None:
    # fails: mypy[arg-type] pyright[reportArgumentType]
    count(FakeContext(count), "1")
    # fails: mypy[arg-type] pyright[reportArgumentType]
    count(FakeContext(look), 1)
    # fails: mypy[arg-type] pyright[reportArgumentType]
    FakeContext("fails/count")
