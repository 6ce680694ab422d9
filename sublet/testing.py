"""Test functions in-process: `from sublet.testing import Harness`."""

from sublet.runtime.testing.fake_context import FakeContext
from sublet.runtime.testing.harness import Harness
from sublet.runtime.testing.history import DeadLetter, Reply, Sent, Step, Timer
from sublet.runtime.testing.virtual_loop import StuckError

__all__ = ["DeadLetter", "FakeContext", "Harness", "Reply", "Sent", "Step", "StuckError", "Timer"]
