"""When a link looks after its peer, and when it gives it up: exactly, on virtual time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sublet.runtime.config.limits import SILENCE_S_MAX, SILENCE_S_MIN
from sublet.runtime.links.lifecycle import LARGE_BYTES, LARGE_PATIENCE, FrameLink
from sublet.runtime.links.link import Link, LinkLimits
from sublet.runtime.protocol.frames import Alive, Data, ErrorInfo, Frame, Goodbye, Hello, Refused
from sublet.runtime.protocol.wire.frames import decode_frame, encode_frame
from sublet.runtime.testing.virtual_loop import VirtualLoop

LIMITS = LinkLimits(silence_s=4.0)
ASK, ANSWER = Alive(asks=True), Alive()
DATA = Data(credit=1)


class Wire:
    """Keeps what was written, with when; a test says how much of it waits."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.pending_bytes = 0
        self.written: list[tuple[float, Frame]] = []
        self.aborted = False

    def write(self, encoded: bytes) -> None:
        self.written.append((self._loop.time(), decode_frame(encoded)))

    def finish(self) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True

    @property
    def asked_s(self) -> list[float]:
        return [at_s for at_s, frame in self.written if frame == ASK]


class Keeper:
    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.frames: list[Frame] = []
        self.ended: list[tuple[float, str, bool]] = []

    def frame_received(self, link: Link, frame: Frame) -> None:
        self.frames.append(frame)

    def link_drained(self, link: Link) -> None:
        pass

    def link_ended(self, link: Link, reason: str, clean: bool) -> None:
        self.ended.append((self._loop.time(), reason, clean))


class Stage:
    """A link whose peer has said hello at the time 0."""

    def __init__(self, loop: VirtualLoop, *, answers_alive: bool = True) -> None:
        self.loop = loop
        self.wire = Wire(loop)
        self.keeper = Keeper(loop)
        self.link = FrameLink(self.wire, self.keeper, LIMITS, "peer")
        self.hear(Hello("~c", answers_alive=answers_alive))
        self.do(lambda: self.link.adopt(self.keeper))
        self.keeper.frames.clear()

    def do(self, what: object) -> None:
        assert callable(what)
        self.loop.call_soon(what)
        self.loop.run_ready()

    def hear(self, frame: Frame) -> None:
        self.do(lambda: self.link.bytes_received(encode_frame(frame)))

    def pass_time(self, until_s: float) -> None:
        """Let timers run, each at its time."""
        while (due_ms := self.loop.next_due_ms(set())) is not None and due_ms <= until_s * 1000:
            self.loop.jump(due_ms)
            self.loop.run_ready()
        self.loop.jump(int(until_s * 1000))
        self.loop.run_ready()


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    loop = VirtualLoop()
    yield loop
    loop.close()


def test_a_silent_peer_is_asked_twice_and_lost_within_the_bound(loop: VirtualLoop) -> None:
    stage = Stage(loop)

    stage.pass_time(60)

    assert stage.wire.asked_s == [2.0, 3.0]
    assert stage.keeper.ended == [(4.0, "lost: the other end was silent for 4 s", False)]
    assert stage.wire.aborted


def test_a_busy_link_costs_nothing(loop: VirtualLoop) -> None:
    stage = Stage(loop)

    for second in range(1, 60):
        stage.pass_time(second - 0.5)
        stage.hear(DATA)
        stage.do(lambda: stage.link.send(DATA))

    assert {frame for _, frame in stage.wire.written if isinstance(frame, Alive)} == set()
    assert stage.keeper.ended == []


def test_who_only_listens_says_that_it_lives(loop: VirtualLoop) -> None:
    """Who sends much on a slow line cannot ask: its question would wait behind all that."""
    stage = Stage(loop)

    for second in range(1, 10):
        stage.pass_time(second - 0.5)
        stage.hear(DATA)

    assert stage.wire.written == [(float(second), Alive()) for second in range(2, 9)]


def test_who_only_talks_asks_whether_anybody_listens(loop: VirtualLoop) -> None:
    stage = Stage(loop)

    for second in range(1, 10):
        stage.pass_time(second - 0.5)
        stage.do(lambda: stage.link.send(DATA))

    assert stage.wire.asked_s == [2.0, 3.0]
    assert [ended_s for ended_s, _, _ in stage.keeper.ended] == [4.0]


def test_who_answers_is_kept_and_its_answers_are_nobodys_business(loop: VirtualLoop) -> None:
    stage = Stage(loop)

    for _ in range(50):
        count = len(stage.wire.asked_s)
        while len(stage.wire.asked_s) == count:
            stage.pass_time(loop.time() + 0.1)
        stage.hear(ANSWER)

    assert stage.keeper.ended == []
    assert stage.keeper.frames == []


def test_a_question_is_answered_at_once(loop: VirtualLoop) -> None:
    stage = Stage(loop)

    stage.hear(ASK)

    assert stage.wire.written == [(0.0, ANSWER)]


def test_a_large_frame_is_announced_and_waited_for(loop: VirtualLoop) -> None:
    stage = Stage(loop)
    large = Refused("f/0", "~c", 1, ErrorInfo("rejected", "x" * (LARGE_BYTES + 1)))

    stage.do(lambda: stage.link.send(large))

    assert [frame for _, frame in stage.wire.written] == [Alive(large_follows=True), large]

    stage.hear(Alive(large_follows=True))
    stage.pass_time(LIMITS.silence_s * (LARGE_PATIENCE - 1))
    assert stage.keeper.ended == []
    stage.hear(large)
    arrived_s = loop.time()
    stage.pass_time(2 * arrived_s)

    # From then on, silence is silence again.
    assert [ended_s for ended_s, _, _ in stage.keeper.ended] == [arrived_s + LIMITS.silence_s]


def test_a_large_frame_that_never_comes_is_not_waited_for_for_ever(loop: VirtualLoop) -> None:
    stage = Stage(loop)
    stage.hear(Alive(large_follows=True))

    stage.pass_time(3_600)

    ((ended_s, _, _),) = stage.keeper.ended
    assert ended_s <= LIMITS.silence_s * LARGE_PATIENCE


def test_a_pause_of_ones_own_is_not_the_peers_silence(loop: VirtualLoop) -> None:
    stage = Stage(loop)
    loop.jump(3_600_000)
    loop.run_ready()
    # Whatever the peer has said meanwhile is read after the timer.
    stage.hear(DATA)

    stage.pass_time(loop.time() + 1.5)

    assert stage.keeper.ended == []


def test_who_does_not_say_that_it_answers_is_not_looked_after(loop: VirtualLoop) -> None:
    stage = Stage(loop, answers_alive=False)

    stage.pass_time(3_600)

    assert stage.wire.written == []
    assert stage.keeper.ended == []


def test_a_link_that_closes_has_its_own_patience(loop: VirtualLoop) -> None:
    stage = Stage(loop)
    stage.pass_time(2.5)
    stage.do(lambda: stage.link.close("enough"))

    stage.pass_time(60)

    assert stage.wire.written[-1] == (2.5, Goodbye("enough"))
    assert stage.keeper.ended == [(2.5 + LIMITS.close_timeout_s, "enough", False)]


def test_nothing_is_looked_after_behind_the_end(loop: VirtualLoop) -> None:
    stage = Stage(loop)
    stage.do(lambda: stage.link.abandon("it has left"))
    stage.do(lambda: stage.link.abandon("again"))

    stage.pass_time(60)

    assert stage.keeper.ended == [(0.0, "it has left", False)]
    assert stage.wire.written == []


@pytest.mark.parametrize("silence_s", [SILENCE_S_MIN / 2, SILENCE_S_MAX * 2, -1.0])
def test_a_silence_beyond_its_bounds_is_refused(silence_s: float) -> None:
    with pytest.raises(ValueError, match=r"silence_s is .*; allowed: 0.1..600"):
        LinkLimits(silence_s=silence_s)
