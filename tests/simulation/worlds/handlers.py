"""What the simulated functions do: a message is a small script that is interpreted here."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from sublet.functions.app import App, Function, functions_of
from sublet.functions.effects import Cancelled, Delayed, Effect, Emitted, Outgoing
from sublet.functions.retry import Retry
from sublet.runtime.partition.model.work import Failure
from sublet.runtime.protocol.frames import ErrorInfo
from sublet.statestore.contract import StateRow
from tests.simulation.oracles.verdict import check

if TYPE_CHECKING:
    from tests.simulation.worlds.node import Node

PARTITIONS_PER_FUNCTION = 2
ATTEMPTS = 3
EGRESS = "out"
DONE = "done"
"""Where functions without state tell what they did."""

OUTSIDE_MARK = "!"
"""The names of requests with side effects begin with it, so that other oracles leave them alone."""

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


def make_functions(chance: random.Random) -> dict[str, Function]:
    """Declare the functions; what they do is interpreted by `Node`, so their bodies are empty."""
    app = App("sim", partitions=PARTITIONS_PER_FUNCTION)
    retry = Retry(attempts=ATTEMPTS, backoff="10ms")
    order: Any = chance.choice(["key", "key", "none"])

    @app.function(retry=retry, order=order, kind=chance.choice(["keyed", "keyed", "stateful"]))
    async def account(ctx: Any, message: Any) -> None: ...

    kind: Any = chance.choice(["keyed", "keyed", "stateless"])
    batch_size, batch_wait = chance.choice([(None, None), (2, "5ms")])

    @app.function(
        retry=retry,
        kind=kind,
        batch_size=batch_size,
        batch_wait=batch_wait,
        infeasible=chance.choice(["run", "refuse"]),
    )
    def ledger(ctx: Any, message: Any) -> None: ...

    @app.function(retry=retry, batch=True, grouping=chance.choice([False, True]))
    def tally(batch: Any) -> None: ...

    return functions_of([app])


class Stories:
    """What clients of a simulated world may ask for, by chance."""

    def __init__(
        self,
        keys: Sequence[str],
        *,
        delays_ms: Sequence[int],
        timeouts_ms: Sequence[int],
        looks: bool = False,
    ) -> None:
        self._keys = keys
        self._delays_ms = delays_ms
        """Of timers."""
        self._timeouts_ms = timeouts_ms
        """Of calls between functions; 0: none."""
        self._looks = looks
        """Whether some only look at a state."""

    def payload(
        self, chance: random.Random, uid: str, function: str, kept: Sequence[str]
    ) -> list[Any]:
        """Return a message for one key of a function; `kept` are timers of that key to cancel."""
        amount = chance.randint(1, 9)
        target, target_key = chance.choice(["sim/ledger", "sim/tally"]), chance.choice(self._keys)
        choices: list[list[Any]] = [["add", uid, amount], ["add", uid, amount]]
        if self._looks:
            choices.append(["look", uid])
        choices += [
            ["fail", uid, amount, chance.randint(1, ATTEMPTS)],
            ["reject", uid],
            ["send", uid, amount, target, target_key],
            ["emit", uid],
        ]
        if function != "sim/ledger":
            delay_ms = chance.choice(self._delays_ms)
            then = chance.choice(["", "", "cancel", "keep", "hand over"])
            choices.append(["timer", uid, amount, delay_ms, target, target_key, then])
            if kept:
                choices += [["cancel", uid, chance.choice(kept)]] * 4
        if function == "sim/account":
            fails, timeout_ms = chance.choice([0, 0, 1]), chance.choice(self._timeouts_ms)
            call = ["call", uid, amount, target_key, chance.randint(1, 2), fails, timeout_ms]
            choices += [call] * 3
        return chance.choice(choices)


class RandomPace:
    """Lets functions run on or off the loop, in batches of changing size."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._aside = chance.choice([0.0, 0.0, 0.5, 1.0])
        self._size = chance.choice([1, 3, 1000])

    def batch_size(self, function: Function, limit: int) -> int:
        return min(limit, self._size)

    def off_loop(self, function: Function) -> bool:
        return self._chance.random() < self._aside

    def learn(self, function: Function, count: int, elapsed_ms: float) -> None:
        return


class TenMs:
    """What a run is expected to take."""

    def coefficients(self, function: Function) -> tuple[float, float]:
        return 10.0, 0.0

    def expected_ms(self, function: Function, count: int) -> float:
        return 10.0

    def at_once(self, function: Function) -> int:
        return 1


class KeyState(msgspec.Struct):
    """The state of one key: what was done to it, in order."""

    history: list[str] = []
    balance: int = 0
    tokens: dict[str, str] = {}
    stamp: float = 0.0
    """Tells the runs of one message apart."""


class States:
    """`Cells` that hold decoded states and now and then forget some."""

    is_complete = False

    def __init__(self, chance: random.Random) -> None:
        self.cells: dict[str, KeyState] = {}
        self._chance = chance

    def missing(self, keys: Sequence[str]) -> Sequence[str]:
        return [key for key in dict.fromkeys(keys) if key not in self.cells]

    unread = missing

    def insert(self, keys: Sequence[str], rows: Sequence[StateRow]) -> None:
        stored = {row.key: row.value for row in rows if row.value is not None}
        for key in keys:
            value = stored.get(key)
            state = KeyState() if value is None else _decode(value, type=KeyState)
            self.cells.setdefault(key, state)

    def drop(self, key: str) -> None:
        self.cells.pop(key, None)

    def over_bound(self) -> bool:
        return self._chance.random() < 0.2

    def shrink(self, in_use: Collection[str]) -> None:
        for key in [each for each in self.cells if each not in in_use]:
            del self.cells[key]


class HandlerError(Exception):
    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


class Waits(Exception):  # noqa: N818  # Not an error: the handler awaits a call.
    """The handler calls somebody."""


class Handling:
    """One attempt at one message: effects and the new state, if it succeeds."""

    def __init__(self, node: Node, message_id: str, attempt: int, key: str, payload: bytes) -> None:
        self.node = node
        self.message_id = message_id
        self.attempt = attempt
        self.key = key
        told = _decode(payload)
        if isinstance(told, dict):
            # It came as a row of columns, where what others do not say is null.
            told = [each for each in told.values() if each is not None]
        self.op, self.uid, *self.args = told
        self.effects: list[Effect] = []
        self.results: list[Any] = []
        self.state = KeyState()

    def run(self) -> Any:
        """Do all that can be done now; raise `Waits` or `HandlerError` otherwise."""
        cell = self.node.cell(self.key)
        self.effects = []
        self.state = KeyState(list(cell.history), cell.balance, dict(cell.tokens))
        if self.op == "look":
            return [self.uid, self.state.history]
        value = getattr(self, f"_do_{self.op}")(*self.args)
        self.state.history.append(self.uid)
        self.state.stamp = self.node.world.stamp()
        return [self.uid, len(self.state.history) - 1] if value is None else value

    def _do_add(self, amount: int) -> None:
        self.state.balance += amount

    def _do_fail(self, amount: int, times: int) -> None:
        if self.attempt <= times:
            raise HandlerError(Failure(ErrorInfo("handler_failed", self.uid), True))
        self.state.balance += amount

    def _do_reject(self) -> None:
        raise HandlerError(Failure(ErrorInfo("rejected", self.uid), False))

    def _do_send(self, amount: int, function: str, key: str) -> None:
        self.state.balance -= amount
        self._send(function, key, ["add", self.uid + ">", amount])

    def _do_emit(self) -> None:
        self.effects.append(Emitted(EGRESS, self.key, _encode(self.uid)))

    def _do_timer(self, amount: int, delay_ms: int, function: str, key: str, then: str) -> None:
        node = self.node
        timer = node.next_timer()
        partition = node.world.partition_of(function, key)
        payload = _encode(["add", self.uid + "@", amount])
        due_ms = node.partition.clock_ms(node.world.now_ms) + delay_ms
        self.effects.append(Delayed(timer, due_ms, partition, key, payload))
        if then == "cancel":
            self.effects.append(Cancelled(node.partition.name, timer))
        elif then == "keep":
            self.state.tokens[self.uid] = timer
        elif then == "hand over":
            self._send("sim/tally", key, ["revoke", self.uid + "~", node.partition.name, timer])

    def _do_cancel(self, timer_uid: str) -> None:
        timer = self.state.tokens.pop(timer_uid, None)
        if timer is not None:
            self.effects.append(Cancelled(self.node.partition.name, timer))

    def _do_revoke(self, partition: str, timer: str) -> None:
        self.effects.append(Cancelled(partition, timer))

    def _do_call(self, amount: int, key: str, calls: int, fails: int, timeout_ms: int) -> None:
        if len(self.results) < calls:
            raise Waits
        if self.attempt <= fails:
            raise HandlerError(Failure(ErrorInfo("handler_failed", self.uid), True))
        for number, result in enumerate(self.results, 1):
            wanted = f"{self.uid}?{number}"
            check(result in (wanted, "late"), "a call got another's reply", result, wanted)
        self.state.balance += amount

    def _do_outside(self, count: int, fails: int) -> list[Any]:
        """Does so many things outside, then fails so often; what fails outside fails it, too."""
        if "failed" in self.results:
            raise HandlerError(Failure(ErrorInfo("handler_failed", self.uid), True))
        if len(self.results) < count:
            raise Waits
        if self.attempt <= fails:
            raise HandlerError(Failure(ErrorInfo("handler_failed", self.uid), True))
        return [self.uid, self.results]

    def call_request(self, number: int) -> tuple[str, str, bytes, int]:
        amount, key, _, _, timeout_ms = self.args
        payload = _encode(["add", f"{self.uid}?{number}", amount])
        return self.node.world.partition_of("sim/ledger", key), key, payload, timeout_ms

    def _send(self, function: str, key: str, payload: list[Any]) -> None:
        world = self.node.world
        partition = world.partition_of(function, key)
        deadline_ms = world.random_deadline_ms()
        self.effects.append(Outgoing(partition, key, _encode(payload), deadline_ms))

    def rows(self) -> list[StateRow]:
        """Make the new state the current one."""
        if self.op == "look":
            return []
        cell = self.node.cell_key(self.key)
        self.node.states.cells[cell] = self.state
        if self.node.function.kind == "stateless":
            # It has no state; what it did is told by an egress instead.
            self.effects.append(Emitted(DONE, self.key, _encode(self.uid)))
            return []
        return [StateRow(cell, b"", _encode(self.state))]
