"""One peer's or client's link, with everything that waits for the end of this loop turn."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from sublet.functions.address import is_client
from sublet.runtime.links.link import Link
from sublet.runtime.partition.model.channel_names import endpoint_of
from sublet.runtime.protocol.frames import Ack, Batch, Data
from sublet.statestore.contract import OutboxEntry

FRAME_BYTES = 1024 * 1024


class PeerOutbound:
    """Gathers what is sent in one turn of the loop into as few frames as possible.

    Counts what the other end has not acknowledged. When that is more than its credit, or the link
    is slow, the port says that it is full: then entries stay in their outbox, and `on_room` tells
    when to offer them again.
    """

    def __init__(
        self, name: str, link: Link, on_room: Callable[[PeerOutbound], None], link_bytes_max: int
    ) -> None:
        self.name = name
        self.is_client = is_client(name)
        self.link = link
        self.credit = 0
        """How many messages the other end lets us have unacknowledged; 0: does not count."""
        self.is_lagging = False
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()
        self._batches: list[msgspec.Raw] = []
        self._bytes = 0
        self._acks: dict[tuple[str, str], Ack] = {}
        self._leases: list[msgspec.Raw] = []
        self._planned = False
        self._sent: dict[tuple[str, str], int] = {}
        self._acknowledged: dict[tuple[str, str], int] = {}
        self._unacknowledged = 0
        self._held: set[tuple[str, str]] = set()
        self._link_bytes_max = link_bytes_max

    def offer(self, partition: str, entry: OutboxEntry) -> None:
        """Send an entry, unless it was sent before or there is no room."""
        channel = (partition, entry.destination)
        last = entry.first + entry.length - 1
        sent = self._sent.get(channel)
        if (sent is not None and last <= sent) or channel in self._held:
            return
        if self.is_lagging or self._is_full():
            self.is_lagging = True
            return
        self._send(channel, entry)

    def offer_anew(self, partition: str, entry: OutboxEntry) -> None:
        """Send the oldest entry of a channel again, although others wait for room.

        It differs from what the outbox would offer when there is room: in line behind that, it
        would never be sent.
        """
        channel = (partition, entry.destination)
        self.rewind(partition, entry.destination, entry.first)
        if channel not in self._held:
            self._send(channel, entry)

    def _send(self, channel: tuple[str, str], entry: OutboxEntry) -> None:
        last = entry.first + entry.length - 1
        sent = self._sent.get(channel)
        if sent is None:
            sent = self._acknowledged[channel] = entry.first - 1
        self._sent[channel] = last
        # As `_owed` counts.
        taken = self._acknowledged[channel]
        if last > taken:
            self._unacknowledged += last - (sent if sent > taken else taken)
        elif sent > taken:
            self._unacknowledged -= sent - taken
        if self._bytes and self._bytes + len(entry.data) > FRAME_BYTES:
            # Together they might be more than a frame may hold.
            self._flush()
        self._batches.append(msgspec.Raw(entry.data))
        self._bytes += len(entry.data)
        if self._bytes >= FRAME_BYTES:
            self._flush()
        elif not self._planned:
            self._plan()

    def _owed(self, channel: tuple[str, str], sent: int) -> int:
        """Return how many of a channel's messages are not acknowledged, with so many sent. What is
        sent again may be acknowledged already."""
        return max(0, sent - self._acknowledged[channel])

    def _is_full(self) -> bool:
        if self.credit and self._unacknowledged >= self.credit:
            return True
        return self.link.pending_bytes > self._link_bytes_max

    def acknowledge(self, ack: Ack) -> None:
        self._acks[ack.target, ack.source] = ack
        if not self._planned:
            self._plan()

    def lease(self, message: bytes) -> None:
        """Send what a lessor or a lessee says; it is not repeated if it is lost."""
        if self._bytes and self._bytes + len(message) > FRAME_BYTES:
            self._flush()
        self._leases.append(msgspec.Raw(message))
        self._bytes += len(message)
        if self._bytes >= FRAME_BYTES:
            self._flush()
        elif not self._planned:
            self._plan()

    def acknowledged(self, partition: str, destination: str, upto: int) -> None:
        """The other end has taken messages: there may be room again."""
        channel = (partition, destination)
        before = self._acknowledged.get(channel)
        if before is None or upto <= before:
            return
        self._acknowledged[channel] = upto
        sent = self._sent[channel]
        if sent > before:
            self._unacknowledged -= min(sent, upto) - before
        if self.is_lagging:
            self.look_for_room()

    def room(self) -> None:
        """There is room again."""
        if self.is_lagging:
            self.is_lagging = False
            self._on_room(self)

    def rewind(self, partition: str, destination: str, first: int) -> None:
        """The other end has nothing from `first` on: it may be sent again."""
        channel = (partition, destination)
        sent = self._sent.get(channel)
        if sent is not None and sent >= first:
            self._unacknowledged += self._owed(channel, first - 1) - self._owed(channel, sent)
            self._sent[channel] = first - 1

    def hold(self, partition: str, destination: str) -> None:
        """Send nothing on a channel until `resume`: what was refused is then offered again.

        Something later would be refused, too, and what was refused before be taken for sent.
        """
        self._held.add((partition, destination))

    def resume(self, partition: str, destination: str) -> None:
        self._held.discard((partition, destination))

    def look_for_room(self) -> None:
        """What was taken back (`rewind`, `forget`) may have made room: nobody else says so."""
        if self.is_lagging and not self._is_full():
            self.room()

    def forget(self, destination: str) -> None:
        """A destination is no longer behind this port."""
        self._forget([each for each in self._sent if endpoint_of(each[1]) == destination])

    def forget_sender(self, partition: str) -> None:
        """Count from the beginning what a partition sends."""
        self._forget([each for each in self._sent if each[0] == partition])

    def _forget(self, channels: Sequence[tuple[str, str]]) -> None:
        for channel in channels:
            self._unacknowledged -= self._owed(channel, self._sent.pop(channel))
            del self._acknowledged[channel]

    def _plan(self) -> None:
        self._planned = True
        self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        # A flush may still be planned: then it finds nothing, or what has come since.
        self._planned = False
        if self._batches or self._acks or self._leases:
            batches: list[Batch] = self._batches  # type: ignore[assignment]  # Encoded already.
            self.link.send(Data(batches, list(self._acks.values()), 0, self._leases))
            self._batches, self._acks, self._leases, self._bytes = [], {}, [], 0
