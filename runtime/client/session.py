"""A client's session: its channels, its links' windows, and what to do when something happens.

No I/O, clock or randomness of its own. Whoever owns a `Session` calls one method for each event,
sends what `take_frame` returns, and calls `tick` when `wake_ms` has come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any

import msgspec

from sublet.functions.codec import Codec
from sublet.functions.errors import (
    DeadlineExceededError,
    SubletError,
    UnavailableError,
    UnknownOutcomeError,
)
from sublet.runtime.client.channel import Channel, error_of
from sublet.runtime.client.retries import TO_DO, Outage, RetryPolicy
from sublet.runtime.client.segment import ANY, Gather, Segment, Waiter
from sublet.runtime.protocol.frames import (
    Ack,
    Batch,
    Data,
    ErrorInfo,
    Extra,
    Kind,
    Refused,
    Topology,
)
from sublet.runtime.protocol.pipeline_messages import Ask

FRAME_BYTES = 2**20
"""A frame is closed when it has reached this size."""
REPLIES_UNACKNOWLEDGED_MAX = 256
"""More replies than this are acknowledged at once, fewer by the way."""
GAP_DOUBLINGS_MAX = 7
ABSENT_RETRY_MS = 1_000
_OVERLOADED = frozenset({"overloaded", "retry_later"})
_ELSEWHERE = frozenset({"unavailable", "not_owner", "gap"})
_DEADLINES_KEPT_MIN = 1_024
_QUESTION = msgspec.msgpack.encode(Ask("nothing"))
"""Asks a partition for what it need not know: it answers, and nothing runs or is kept."""


class ClientStats:
    """What a client counts. Read it; do not write it."""

    __slots__ = (
        "deadlines_missed",
        "duplicate_replies",
        "frames_received",
        "frames_sent",
        "in_flight",
        "links_lost",
        "links_opened",
        "messages_resent",
        "messages_sent",
        "refusals",
        "replies",
        "sessions",
    )

    def __init__(self) -> None:
        self.in_flight = 0
        """Messages whose caller waits, sent or not."""
        self.messages_sent = 0
        """Each counted once, however often it was sent."""
        self.messages_resent = 0
        self.replies = 0
        self.duplicate_replies = 0
        self.frames_sent = 0
        self.frames_received = 0
        self.refusals = 0
        self.deadlines_missed = 0
        self.links_opened = 0
        self.links_lost = 0
        self.sessions = 0

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}


class Peer:
    """One live link to a worker, as the session sees it."""

    __slots__ = ("acks", "in_flight", "ready", "replies_unacknowledged", "window", "worker")

    def __init__(self, worker: str, window: int) -> None:
        self.worker = worker
        self.window = window
        """How many messages may be sent and not acknowledged."""
        self.in_flight = 0
        self.ready: deque[Channel] = deque()
        """Channels with something to send; each takes its turn with one segment."""
        self.acks: list[Channel] = []
        self.replies_unacknowledged = 0

    @property
    def has_frame(self) -> bool:
        return bool(self.ready or self.acks)


class Session:
    """Everything under one endpoint name."""

    def __init__(
        self,
        endpoint: str,
        *,
        retry_policy: RetryPolicy,
        stats: ClientStats,
        rng: Callable[[], float],
    ) -> None:
        """`rng` returns numbers between 0 and 1, so that the retries of many clients do not
        coincide."""
        self.endpoint = endpoint
        self.retry_policy = retry_policy
        self.stats = stats
        self.channels: dict[str, Channel] = {}
        self.peers: dict[str, Peer] = {}
        """Worker id to our live link."""
        self.topology: Topology | None = None
        self.expired: Channel | None = None
        """A channel that its partition has forgotten: go on under another name (`succeed`)."""
        self.refusals_to_send: list[tuple[Peer, Refused]] = []
        self.notices: list[str] = []
        """What callers have been waiting for in vain: to be told once, by whoever takes them."""
        self.wake_ms = inf
        self._rng = rng
        self._disconnected: dict[Channel, None] = {}
        self._absent: dict[str, float | None] = {}
        """Functions that no worker has, with since when; None: noted at the next tick."""
        self._deadlines: list[tuple[int, int, Segment, Channel]] = []
        self._deadlines_max = _DEADLINES_KEPT_MIN
        self._holds: list[tuple[float, int, Channel]] = []
        self._doubted: dict[Channel, None] = {}
        self._outages: dict[str, Outage] = {}
        """Of workers that cannot be reached, and of partitions that have no owner, or one that
        refuses what it is sent."""
        self._order = 0

    # From callers

    def channel_of(self, partition: str) -> Channel:
        channel = self.channels.get(partition)
        if channel is None:
            channel = self.channels[partition] = Channel(partition, self.endpoint)
            if self.topology is not None:
                self._place(channel, self.topology.placement.get(partition))
        return channel

    def add(
        self,
        channel: Channel,
        kind: Kind,
        key: str,
        payload: bytes,
        deadline_ms: int | None,
        codec: Codec[Any],
        waiter: Waiter,
    ) -> Segment:
        """Take one message; it leaves with the channel's next frame. Return where it stands."""
        segment = channel.filling
        if (
            segment is None
            or segment.kind is not kind
            or segment.deadline_ms != deadline_ms
            or segment.codec is not codec
            or segment.full
        ):
            segment = channel.filling = Segment(kind, deadline_ms, codec)
            self._enqueue(channel, segment)
        segment.add(key, payload, waiter)
        self.stats.in_flight += 1
        if not channel.queued:
            self._ready(channel)
        return segment

    def add_many(
        self,
        channel: Channel,
        segment: Segment,
        keys: list[str],
        column: bytes,
        gather: Gather,
        places: Sequence[int],
    ) -> None:
        """Take a whole segment of messages that share one waiter."""
        segment.fill(keys, column, gather, places)
        channel.filling = None
        self._enqueue(channel, segment)
        self.stats.in_flight += len(keys)
        if not channel.queued:
            self._ready(channel)

    def cancel(self, asked: Segment, place: int) -> None:
        """The caller of a message does not wait any more: if it is a call, it is not to be made,
        or not to go on."""
        segment, index = asked.find(place)
        if segment.kind is not Kind.CALL or segment.waiters[index] is None:
            return
        if segment.first:
            self._cancel_sent(segment, [segment.place_of(index)])
        else:
            segment.remove(index)
            self.stats.in_flight -= 1

    def cancel_many(self, asked: Segment) -> None:
        """As `cancel`, for all that is left of a segment whose messages have one waiter."""
        for segment in asked.parts():
            if segment.kind is not Kind.CALL or not segment.unsettled:
                continue
            if segment.first:
                self._cancel_sent(segment, segment.unanswered_places())
            else:
                self.stats.in_flight -= segment.fail(_cancelled)

    def _cancel_sent(self, called: Segment, places: Sequence[int], *, late: bool = False) -> None:
        """Cancel calls that have left: by a message, behind all that waits in their channel."""
        channel = called.channel
        assert channel is not None
        if called.dropped or not places:
            return
        for place in places:
            segment = channel.filling
            if segment is None or segment.kind is not Kind.CANCEL_CALL or segment.full:
                segment = channel.filling = Segment(Kind.CANCEL_CALL, None, ANY)
                channel.unsent.append(segment)
            segment.add_cancellation(called, place, late=late)
        if not channel.queued:
            self._ready(channel)

    def _enqueue(self, channel: Channel, segment: Segment) -> None:
        channel.unsent.append(segment)
        self._watch_deadline(channel, segment)

    def _watch_deadline(self, channel: Channel, segment: Segment) -> None:
        if segment.deadline_ms is None:
            return
        self._order += 1
        deadlines = self._deadlines
        heappush(deadlines, (segment.deadline_ms, self._order, segment, channel))
        self.wake_ms = min(self.wake_ms, segment.deadline_ms)
        if len(deadlines) > self._deadlines_max:
            # Most calls are answered long before their deadline: forget those now and then.
            deadlines[:] = [each for each in deadlines if each[2].unsettled or each[2] is segment]
            heapify(deadlines)
            self._deadlines_max = max(_DEADLINES_KEPT_MIN, 2 * len(deadlines))

    def _ready(self, channel: Channel) -> None:
        if channel.held:
            return
        peer = channel.peer
        if peer is None:
            # Noted with a time at the next tick, which is now.
            self._mark_disconnected(channel)
        else:
            channel.queued = True
            peer.ready.append(channel)

    def _mark_disconnected(self, channel: Channel) -> None:
        if channel not in self._disconnected:
            self._disconnected[channel] = None
            # A refusal may have set it long ago, while the channel still had a link.
            channel.unreachable_since_ms = None
            self.wake_ms = 0.0
        elif self._is_absent(channel):
            self.wake_ms = 0.0

    def _is_absent(self, channel: Channel) -> bool:
        # Without a link nobody would tell us that a worker with the function has come.
        is_told = bool(self.peers) and channel.worker is None
        return is_told and _function_of(channel) in self._absent

    # Links and placement

    def backoff_s(self, failures: int) -> float:
        """Return how long to wait after so many failures in a row, with some jitter."""
        return self.retry_policy.backoff_ms(failures) / 1000.0 * (0.75 + self._rng() / 2)

    def workers_left(self) -> list[Peer]:
        """Return our links to workers that are not in the cluster any more."""
        known = self.topology.workers if self.topology is not None else {}
        return [peer for worker, peer in self.peers.items() if worker not in known]

    def addresses_unlinked(self) -> list[str]:
        """Return the addresses of the workers to which we have no link, another one first each
        time."""
        known = self.topology.workers if self.topology is not None else {}
        unlinked = [address for worker, address in known.items() if worker not in self.peers]
        at = int(self._rng() * len(unlinked))
        return unlinked[at:] + unlinked[:at]

    def workers_wanted(self) -> set[str]:
        """Return the owners of partitions that somebody waits for, without a link."""
        return {each.worker for each in self._disconnected if each.worker is not None}

    @property
    def has_disconnected(self) -> bool:
        return bool(self._disconnected)

    def link_opened(self, worker: str, window: int) -> Peer:
        """A worker has welcomed us; whatever it has not acknowledged is sent again."""
        assert worker not in self.peers
        peer = self.peers[worker] = Peer(worker, window)
        self._outages.pop(worker, None)
        self.stats.links_opened += 1
        for channel in self.channels.values():
            if channel.worker == worker:
                self._attach(channel)
        return peer

    def link_lost(self, peer: Peer) -> None:
        if self.peers.get(peer.worker) is not peer:
            return
        del self.peers[peer.worker]
        self.stats.links_lost += 1
        for channel in self.channels.values():
            if channel.peer is peer:
                self._detach(channel)
                if not channel.is_idle():
                    self._mark_disconnected(channel)

    def topology_changed(self, topology: Topology, *, trusted: bool = False) -> bool:
        """Follow partitions to their owners; return False if we knew better.

        `trusted` when nobody else is there to ask: a cluster that was started anew counts its
        versions from the beginning.
        """
        known = self.topology
        if known is not None and topology.version <= known.version and not trusted:
            return False
        self.topology = topology
        for name in self._outages.keys() - topology.workers.keys() - self.channels.keys():
            del self._outages[name]
        absent = [each.name for each in topology.functions if each.absent]
        self._absent = {name: self._absent.get(name) for name in absent}
        if absent:
            self.wake_ms = 0.0
        for channel in self.channels.values():
            worker = topology.placement.get(channel.partition)
            if worker != channel.worker:
                self._place(channel, worker)
        return True

    def is_replaced(self, worker: str, topology: Topology) -> bool:
        """Tell whether a worker that welcomes us does not know that its cluster does without it.

        Its partitions have other owners, and what it says of them is what was. Unlike a worker of
        a cluster that was started anew, it still counts on some whom we know, too.
        """
        known = self.topology
        return (
            known is not None
            and topology.version < known.version
            and worker not in known.workers
            and not known.workers.keys().isdisjoint(topology.workers)
        )

    def _place(self, channel: Channel, worker: str | None) -> None:
        self._detach(channel)
        channel.worker = worker
        if worker in self.peers:
            self._attach(channel)
        elif not channel.is_idle():
            self._mark_disconnected(channel)

    def _attach(self, channel: Channel) -> None:
        channel.peer = self.peers[channel.worker] if channel.worker else None
        channel.held = channel.queued = False
        channel.refusals = 0
        channel.unreachable_since_ms = channel.doubted_ms = None
        channel.gap_told = False
        self._disconnected.pop(channel, None)
        if channel.awaiting and not channel.resend:
            self._ask_whether_known(channel)
        if channel.has_work:
            self._ready(channel)

    def _ask_whether_known(self, channel: Channel) -> None:
        """Send something behind calls that were taken and not answered: if their owner was not the
        last, and the store has lost them since, nobody else would say so."""
        question = Segment(Kind.STAGE, None, ANY)
        question.keys, question.items = [""], [_QUESTION]
        question.size = len(_QUESTION)
        channel.send_first(question)

    def _detach(self, channel: Channel) -> None:
        peer, channel.peer = channel.peer, None
        channel.queued = channel.held = channel.ack_due = False
        lost = channel.lose()
        if peer is not None:
            peer.in_flight -= lost
            # It may stand in the peer's queue still; `take_frame` passes over it.

    # To the worker

    def take_frame(self, peer: Peer, now_ms: float) -> Data | None:
        """Return the next frame for this worker; None when there is nothing, or no room."""
        batches: list[Batch] = []
        size = 0
        ready = peer.ready
        while ready and size < FRAME_BYTES:
            channel = ready[0]
            segment = None
            if channel.peer is peer and channel.queued and not channel.held:
                segment = channel.next_segment()
            if segment is None:
                ready.popleft()
                if channel.peer is peer:
                    channel.queued = False
                continue
            if not self._has_room(peer, channel, segment):
                break
            if batches and size + segment.size > FRAME_BYTES:
                break
            segment = channel.send_next()
            size += segment.size
            batches.append(self._batch(peer, channel, segment, now_ms))
            # Every channel in its turn, so that a long one does not hold up the others.
            ready.popleft()
            if channel.has_work:
                ready.append(channel)
            else:
                channel.queued = False
        acks = self._take_acks(peer) if peer.acks else []
        if not batches and not acks:
            return None
        self.stats.frames_sent += 1
        return Data(batches, acks)

    def _has_room(self, peer: Peer, channel: Channel, segment: Segment) -> bool:
        if segment.kind is Kind.CANCEL_CALL:
            return True  # It makes room, and there are no more of them than calls.
        room = peer.window - peer.in_flight
        if segment.count - segment.acked <= room:
            return True
        if peer.in_flight or room < 1:
            # To wait costs less than to cut, and nobody is passed over meanwhile.
            return False
        if not segment.first:
            right = channel.cut_next(room)
            self._watch_deadline(channel, right)
        # Numbered for a wider window, before the link was lost: it goes as it is.
        return True

    def _batch(self, peer: Peer, channel: Channel, segment: Segment, now_ms: float) -> Batch:
        count = len(segment.keys)
        peer.in_flight += count - segment.acked
        if segment.tainted or segment.refusals:
            self.stats.messages_resent += count
        else:
            self.stats.messages_sent += count
        deadline_ms = segment.deadline_ms
        left_ms = None if deadline_ms is None else max(0, int(deadline_ms - now_ms))
        return segment.batch(channel.partition, self.endpoint, left_ms, now_ms)

    def _take_acks(self, peer: Peer) -> list[Ack]:
        acks: list[Ack] = []
        for channel in peer.acks:
            if channel.peer is peer and channel.ack_due:
                channel.ack_due = False
                acks.append(Ack(self.endpoint, channel.partition, channel.replies_taken))
        peer.acks.clear()
        peer.replies_unacknowledged = 0
        return acks

    # From the worker

    def data_received(self, peer: Peer, data: Data) -> None:
        stats, channels = self.stats, self.channels
        stats.frames_received += 1
        if data.credit:
            peer.window = data.credit
        for batch in data.batches:
            channel = channels.get(batch.source)
            if channel is None or batch.target != self.endpoint or batch.kind is not Kind.REPLY:
                continue  # For somebody whom we are not.
            if batch.first <= channel.replies_taken and channel.is_answered_anew(batch):
                self.expired = channel
                continue
            replies, settled = channel.take_replies(batch)
            stats.in_flight -= settled
            if replies < 0:
                self._ask_again(peer, channel)
                continue
            stats.replies += replies
            stats.duplicate_replies += batch.count - replies
            # A repeated reply means that our acknowledgement was lost: say it again.
            peer.replies_unacknowledged += batch.count
            if not channel.ack_due and channel.peer is peer:
                channel.ack_due = True
                peer.acks.append(channel)
        for ack in data.acks:
            channel = channels.get(ack.target)
            if channel is not None and ack.source == self.endpoint:
                channel.epoch = max(channel.epoch, ack.epoch)
                landed, settled = channel.acknowledged(ack.upto)
                if landed:
                    channel.doubted_ms = None
                    if self._outages:
                        self._outages.pop(channel.partition, None)
                stats.in_flight -= settled
                if channel.peer is not None:
                    channel.peer.in_flight -= landed

    def _ask_again(self, peer: Peer, channel: Channel) -> None:
        if channel.gap_told:
            return
        channel.gap_told = True
        expected = channel.replies_taken + 1
        error = ErrorInfo("gap", f"expected reply {expected}")
        refused = Refused(self.endpoint, channel.partition, expected, error)
        self.refusals_to_send.append((peer, refused))

    def refused(self, peer: Peer, refused: Refused, now_ms: float) -> None:
        channel = self.channels.get(refused.target)
        if channel is None or refused.source != self.endpoint or channel.peer is not peer:
            return  # A late word about a partition that we have followed elsewhere.
        stats = self.stats
        stats.refusals += 1
        error, first = refused.error, refused.first
        oldest = channel.sent[0].first + channel.sent[0].acked if channel.sent else None
        if error.code == "session_expired" or (
            error.code == "gap"
            and _is_lost(channel, first)
            and not self._is_former(channel, refused, now_ms)
        ):
            # What was sent before may run, although it was not acknowledged and never will be.
            channel.taint_before(first)
            self.expired = channel
            return
        if oldest is None:
            if error.code == "gap":
                if channel.awaiting and not channel.resend and _is_lost(channel, first):
                    # A former owner's word; if it stays the owner, it says so again.
                    self._ask_whether_known(channel)
                # The partition has arrived where we may have been refused before.
                channel.held = False
                if channel.has_work and not channel.queued:
                    self._ready(channel)
            return
        rewound = channel.rewind(max(first, oldest))
        if not rewound:
            return  # It was said before: a worker says it for every batch.
        peer.in_flight -= rewound
        if error.code in _OVERLOADED:
            self._retry_overloaded(channel, error, now_ms)
        elif error.code in _ELSEWHERE:
            # Said for every batch, at any time: a word may be about a copy sent long ago, while
            # a newer one is being taken. What is known for certain only an overloaded partition
            # says, once, until it is sent what it has refused.
            channel.taint()
            self._retry_elsewhere(channel, error, now_ms)
        elif channel.resend:
            stats.in_flight -= channel.drop([channel.resend[0]], lambda: error_of(error))
        channel.refusals += 1
        if channel.has_work and not channel.queued:
            self._ready(channel)

    def _is_former(self, channel: Channel, refused: Refused, now_ms: float) -> bool:
        """Tell whether a former owner says so, which cannot know what the later ones have taken.

        If it still says so after `unreachable_ms`, the store has lost the later ones.
        """
        if not 0 < refused.epoch < channel.epoch:
            return False
        if channel.doubted_ms is None:
            channel.doubted_ms = now_ms
        # It need not be said twice: it may be silent to all that comes behind what it wants.
        self._doubted[channel] = None
        due_ms = channel.doubted_ms + self.retry_policy.unreachable_ms
        self.wake_ms = min(self.wake_ms, due_ms)
        return now_ms < due_ms

    def _expire_doubted(self, now_ms: float) -> float:
        """Believe what was said `unreachable_ms` ago, of one channel at a time; return when to look
        again."""
        wake_ms = inf
        for channel in tuple(self._doubted):
            if channel.doubted_ms is None or channel.is_idle():
                del self._doubted[channel]
                continue
            due_ms = channel.doubted_ms + self.retry_policy.unreachable_ms
            if due_ms <= now_ms and self.expired is None:
                del self._doubted[channel]
                channel.taint_before(channel.next_number)
                self.expired = channel
            else:
                wake_ms = min(wake_ms, max(due_ms, now_ms))
        return wake_ms

    def _retry_overloaded(self, channel: Channel, error: ErrorInfo, now_ms: float) -> None:
        too_often: list[Segment] = []
        for segment in channel.resend:
            segment.refusals += 1
            if segment.refusals > self.retry_policy.overload_retries:
                too_often.append(segment)
        self.stats.in_flight -= channel.give_up(too_often, lambda: error_of(error))
        wait_ms = max(1, error.retry_after_ms) * 2.0 ** min(channel.refusals, 4)
        self._hold(channel, now_ms, wait_ms * (0.75 + self._rng() / 2))

    def _retry_elsewhere(self, channel: Channel, error: ErrorInfo, now_ms: float) -> None:
        """A new owner is on its way: what counts is how long it takes, not how often we ask."""
        if channel.unreachable_since_ms is None or not channel.refusals:
            channel.unreachable_since_ms = now_ms
        outage = self._outage(channel.partition, now_ms)
        why = f"{channel.partition} accepts no messages: {error.message}"
        self._notice(outage, why, now_ms)
        if now_ms - channel.unreachable_since_ms >= self.retry_policy.unreachable_ms:
            channel.unreachable_since_ms = now_ms
            self.fail_channel(channel, why, outage.retry_after_ms(now_ms))
        if error.code == "gap" and not channel.refusals:
            return
        if error.code == "gap":
            # It is there, and says from where on: only who says so again and again has to wait.
            wait_ms = 2.0 ** min(channel.refusals, GAP_DOUBLINGS_MAX)
        elif error.code == "unavailable":
            wait_ms = max(1, error.retry_after_ms) * 2.0 ** min(channel.refusals, 2)
        else:
            # A new placement that comes meanwhile releases the channel.
            wait_ms = self.retry_policy.backoff_ms(channel.refusals)
        self._hold(channel, now_ms, wait_ms * (0.75 + self._rng() / 2))

    def _hold(self, channel: Channel, now_ms: float, wait_ms: float) -> None:
        channel.held = True
        channel.queued = False
        self._order += 1
        heappush(self._holds, (now_ms + wait_ms, self._order, channel))
        self.wake_ms = min(self.wake_ms, now_ms + wait_ms)

    # Time

    def tick(self, now_ms: float) -> None:
        """Time has passed: send what was held back, fail what is too late."""
        holds = self._holds
        while holds and holds[0][0] <= now_ms:
            _, _, channel = heappop(holds)
            if channel.held:
                channel.held = False
                if channel.has_work and not channel.queued:
                    self._ready(channel)
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now_ms:
            _, _, segment, channel = heappop(deadlines)
            if any(each.unsettled for each in segment.parts()):
                self._miss_deadline(segment, channel)
        wake_ms = min(holds[0][0] if holds else inf, deadlines[0][0] if deadlines else inf)
        wake_ms = min(wake_ms, self._expire_doubted(now_ms))
        self.wake_ms = min(wake_ms, self._fail_disconnected(now_ms))

    def _miss_deadline(self, asked: Segment, channel: Channel) -> None:
        for segment in asked.parts():
            if not segment.unsettled:
                continue
            if segment.first and segment.kind is Kind.CALL:
                # The partition knows the deadline, but an heir of it does not.
                self._cancel_sent(segment, segment.unanswered_places(), late=True)
            if not segment.first and self._is_absent(channel):
                # It has never left: nothing can have happened, and the reason is known.
                missed = segment.fail(lambda: _absent(channel))
            else:
                missed = segment.fail(lambda: _too_late(channel))
            self.stats.in_flight -= missed
            self.stats.deadlines_missed += missed
            if channel.filling is segment:
                channel.filling = None
        channel.next_segment()

    def _fail_disconnected(self, now_ms: float) -> float:
        """Fail who has waited too long for a link; return when to look again."""
        wake_ms = inf
        for name, since_ms in self._absent.items():
            if since_ms is None:
                self._absent[name] = now_ms
        for channel in tuple(self._disconnected):
            if channel.is_idle() or channel.peer is not None:
                del self._disconnected[channel]
                channel.unreachable_since_ms = None
                continue
            if channel.unreachable_since_ms is None:
                channel.unreachable_since_ms = now_ms
            outage = self._outage(channel.worker or channel.partition, now_ms)
            why = self._why_disconnected(channel, outage.lasts_s(now_ms))
            if self._is_absent(channel):
                wake_ms = min(wake_ms, self._fail_absent(channel, now_ms))
                if channel.is_idle():
                    del self._disconnected[channel]
                    continue
            else:
                wake_ms = min(wake_ms, self._notice(outage, why, now_ms))
            due_ms = channel.unreachable_since_ms + self.retry_policy.unreachable_ms
            if due_ms <= now_ms:
                self.fail_channel(channel, why, outage.retry_after_ms(now_ms))
                channel.unreachable_since_ms = now_ms
                due_ms = now_ms + self.retry_policy.unreachable_ms
                if channel.is_idle():
                    del self._disconnected[channel]
                    continue
            wake_ms = min(wake_ms, due_ms)
        return wake_ms

    def _fail_absent(self, channel: Channel, now_ms: float) -> float:
        """Fail who asks for a function that no worker has had for a while; return when to look
        again. What was sent to a worker that had it waits as long as for any other."""
        since_ms = self._absent[_function_of(channel)]
        due_ms = (now_ms if since_ms is None else since_ms) + self.retry_policy.absent_ms
        if due_ms > now_ms:
            return due_ms
        self.stats.in_flight -= channel.fail_unsent(lambda: _absent(channel))
        return inf

    def _why_disconnected(self, channel: Channel, lasts_s: float) -> str:
        if self._is_absent(channel):
            return _absent(channel).message
        if channel.worker is None:
            return f"{channel.partition} has had no owner for {lasts_s:.0f} s; {TO_DO}"
        workers = self.topology.workers if self.topology else {}
        address = workers.get(channel.worker, "unknown")
        owner = f"{channel.worker} ({address}), the last known owner of {channel.partition}"
        if self.peers:
            return (
                f"worker {owner}, has accepted no messages for {lasts_s:.0f} s: it is down or "
                "cannot reach the store, and no worker has taken over; check with `sublet status`"
            )
        return f"no worker has been reachable for {lasts_s:.0f} s, not even {owner}; {TO_DO}"

    def _outage(self, name: str, now_ms: float) -> Outage:
        """Return that of a worker or a partition; a new one, if there was none of late."""
        outage = self._outages.get(name)
        if outage is None or not outage.goes_on(now_ms):
            outage = self._outages[name] = Outage(now_ms)
        return outage

    def _notice(self, outage: Outage, why: str, now_ms: float) -> float:
        """Tell once what is waited for; return when to look again."""
        if outage.is_told:
            return inf
        due_ms = outage.since_ms + min(
            self.retry_policy.standstill_ms, self.retry_policy.unreachable_ms
        )
        if due_ms > now_ms:
            return due_ms
        outage.is_told = True
        timeout_s = self.retry_policy.unreachable_ms / 1000.0
        self.notices.append(f"{why}. Requests fail after {timeout_s:g} s")
        return inf

    def fail_channel(self, channel: Channel, reason: str, retry_after_ms: int = 50) -> None:
        """Tell everybody who waits here."""
        self.stats.in_flight -= channel.fail_all(
            lambda: UnavailableError(reason, retry_after_ms), lambda: UnknownOutcomeError(reason)
        )

    # The end

    @property
    def settled(self) -> bool:
        """Nobody waits here any more."""
        return not any(
            segment.unsettled
            for channel in self.channels.values()
            for queue in (channel.unsent, channel.resend, channel.sent, channel.awaiting)
            for segment in queue
        )

    def succeed(self, old: Session) -> None:
        """Take over, under another name, what an expired session has not sent.

        Numbers and replies belong to an endpoint's name, and a link has one name. So the session
        changes its name as a whole, and the old one stays until its other channels have got
        their replies.
        """
        expired, old.expired = old.expired, None
        for channel in old.channels.values():
            if channel is expired:
                if channel.peer is not None:
                    # Nobody will acknowledge it, and other channels need the room.
                    channel.peer.in_flight -= channel.rewind(0)
                reason = (
                    f"{channel.partition} has no session for this client: it expired, or the store "
                    "has lost data"
                )
                settled, segments = channel.expire(lambda: UnknownOutcomeError(reason))  # noqa: B023  # called at once
                self.stats.in_flight -= settled
            else:
                segments = list(channel.unsent)
                channel.unsent.clear()
                channel.filling = None
            successor = self.channel_of(channel.partition)
            for segment in segments:
                self._enqueue(successor, segment)
            if successor.has_work and not successor.queued:
                self._ready(successor)


def with_extra(segment: Segment, extra: Extra) -> None:
    """Give the message that was added last what few messages have."""
    if segment.extras is None:
        segment.extras = {}
    segment.extras[len(segment.keys) - 1] = extra


def _is_lost(channel: Channel, first: int) -> bool:
    """Tell whether the partition wants messages that it has acknowledged before."""
    queues: Iterable[deque[Segment]] = (channel.sent, channel.resend)
    heads = (queue[0] for queue in queues if queue)
    oldest = next((each.first + each.acked for each in heads), channel.next_number)
    return first < oldest


def _cancelled() -> SubletError:
    return UnknownOutcomeError("the caller was cancelled")


def _function_of(channel: Channel) -> str:
    return channel.partition.rpartition("/")[0]


def _absent(channel: Channel) -> UnavailableError:
    return UnavailableError(
        f"no worker has the function {_function_of(channel)}; start one that declares it",
        ABSENT_RETRY_MS,
    )


def _too_late(channel: Channel) -> SubletError:
    return DeadlineExceededError(f"no reply from {channel.partition} within the deadline")
