"""Clients that send again what is not acknowledged, from the first of it on."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import msgspec

from sublet.functions.codec import join_column, split_column
from sublet.runtime.protocol.frames import Ack, Batch, ErrorInfo, Extra, Kind, Refused
from tests.simulation.oracles.verdict import check

if TYPE_CHECKING:
    from tests.simulation.worlds.node import Node
    from tests.simulation.worlds.partition import World

_encode = msgspec.msgpack.encode
_decode = msgspec.msgpack.decode


class Said:
    """One message of a client, and the answers to it."""

    def __init__(
        self,
        kind: Kind,
        key: str,
        payload: Any,
        idempotency_key: str,
        deadline_ms: float | None = None,
    ) -> None:
        self.kind = kind
        self.key = key
        self.payload = payload
        """Of messages a list, with its name in the second place."""
        self.idempotency_key = idempotency_key
        self.deadline_ms = deadline_ms
        self.withdrawn = False
        self.untaken: ErrorInfo | None = None
        """Why nobody has taken it, if its sender was told so: then nothing may happen."""
        self.said_ms = 0.0
        self.answered_ms = inf
        self.done_ms = inf
        """When its sender has heard what has become of it."""
        self.replies: list[tuple[Any, ErrorInfo | None]] = []

    @property
    def may_end_early(self) -> bool:
        """Tell whether its caller may leave before it is answered."""
        return self.kind is Kind.CALL and (self.withdrawn or self.deadline_ms is not None)

    def ended_early(self) -> bool:
        """Tell whether the answer says that it has not run."""
        error = self.replies[0][1] if self.replies else None
        return error is not None and error.code in ("deadline_exceeded", "cancelled", "infeasible")

    @property
    def uid(self) -> str:
        return str(self.payload[1])


class ClientChannel:
    """What one client has said to one partition: sent again until it is acknowledged."""

    def __init__(self, client: Client, partition: str) -> None:
        self.client = client
        self.partition = partition
        self.said: list[Said] = []
        self.acked = 0
        self.next = 1
        self.replies_taken = 0
        self._held = 0

    def say(self, said: Said) -> None:
        said.said_ms = self.client.world.now_ms
        self.said.append(said)
        # What is said in one moment leaves together.
        self.client.world.soon(self._pump_unless_held)

    def withdraw(self, number: int) -> None:
        """Take back whatever the message with this number is."""
        target = self.said[number - 1]
        target.withdrawn = True
        self.say(Said(Kind.CANCEL_CALL, str(number), [None, f"-{target.uid}"], ""))

    def _pump_unless_held(self) -> None:
        if not self._held:
            self.pump()

    def pump(self) -> None:
        chance = self.client.world.chance
        while self.next <= len(self.said):
            first = self.next
            kind = self.said[first - 1].kind
            stop = first
            while stop < first + chance.randint(1, 4) and stop <= len(self.said):
                if self.said[stop - 1].kind is not kind:
                    break
                stop += 1
            self._send(first, self.said[first - 1 : stop - 1])
            self.next = stop

    def _send(self, first: int, said: Sequence[Said]) -> None:
        extras = {
            place: Extra(each.idempotency_key)
            for place, each in enumerate(said)
            if each.idempotency_key
        }
        batch = Batch(
            self.partition,
            self.client.name,
            first,
            said[0].kind,
            [each.key for each in said],
            msgspec.Raw(join_column([_encode(each.payload) for each in said])),
            len(said),
            self._time_left(said),
            extras or None,
        )
        self.client.world.send(self.client, self.partition, batch)

    def _time_left(self, said: Sequence[Said]) -> int | list[int] | None:
        now_ms = self.client.world.now_ms
        left = [
            -1 if each.deadline_ms is None else max(0, int(each.deadline_ms - now_ms))
            for each in said
        ]
        if all(each == left[0] for each in left):
            return None if left[0] < 0 else left[0]
        return left

    def again(self) -> None:
        """Whatever was under way is lost, or not."""
        self._held += 1
        self._go_on(self._held)

    def _go_on(self, held: int) -> None:
        if held == self._held:
            self._held = 0
            self.next = self.acked + 1
            self.pump()

    def refused(self, refused: Refused) -> None:
        if refused.first <= self.acked:
            return
        expired = refused.error.code == "session_expired"
        check(not expired or not self.acked, "the session was forgotten", self.client.name)
        self._held += 1
        self.client.world.after(1 + refused.error.retry_after_ms, self._go_on, self._held)

    def replied(self, batch: Batch, sender: Node | Client) -> None:
        if batch.first > self.replies_taken + 1:
            error = ErrorInfo("gap", "")
            missing = Refused(batch.target, batch.source, self.replies_taken + 1, error)
            self.client.world.send(self.client, self.partition, missing, to=sender)
            return
        results = split_column(batch.payloads)
        refs = batch.refs or range(batch.refs_first, batch.refs_first + batch.count)
        for place in range(self.replies_taken + 1 - batch.first, batch.count):
            error_ = batch.errors.get(place) if batch.errors else None
            said = self.said[refs[place] - 1]
            said.answered_ms = min(said.answered_ms, self.client.world.now_ms)
            said.replies.append((_decode(bytes(results[place])), error_))
            if error_ is not None and error_.code == "deadline_exceeded":
                due_ms = said.deadline_ms
                on_time = due_ms is not None and self.client.world.now_ms + 1 >= due_ms
                check(on_time, "it was over before its deadline", said.uid)
        self.replies_taken = max(self.replies_taken, batch.first + batch.count - 1)
        ack = Ack(self.client.name, self.partition, self.replies_taken)
        self.client.world.send(self.client, self.partition, ack, to=sender)


class Client:
    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.view: dict[str, Node] = dict(world.owners)
        self.channels: dict[str, ClientChannel] = {}
        self.gone = False

    def say(self, function: str, said: Said) -> None:
        partition = self.world.partition_of(function, said.key)
        channel = self.channels.get(partition)
        if channel is None:
            channel = self.channels[partition] = ClientChannel(self, partition)
        channel.say(said)

    def withdraw(self, function: str, said: Said) -> None:
        channel = self.channels[self.world.partition_of(function, said.key)]
        channel.withdraw(channel.said.index(said) + 1)

    def receive(self, frame: Batch | Ack | Refused, sender: Node | Client) -> None:
        if isinstance(frame, Batch):
            self.channels[frame.source].replied(frame, sender)
        elif isinstance(frame, Ack):
            channel = self.channels[frame.target]
            channel.acked = max(channel.acked, frame.upto)
        else:
            self.channels[frame.target].refused(frame)

    def reachable(self, endpoint: str) -> None:
        if endpoint in self.channels:
            self.channels[endpoint].again()
