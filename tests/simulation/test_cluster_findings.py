"""What the simulated cluster has found, each as a story of its own."""

from __future__ import annotations

import pytest

from sublet.functions.errors import UnavailableError
from sublet.runtime.exchange import Exchange
from sublet.runtime.frames import Hello
from sublet.runtime.limits import Limits
from tests.fuzz.site import QuietLink


def test_a_worker_welcomes_nobody_before_it_knows_its_cluster() -> None:
    """A client that lost all links could reach a worker that was just starting, and was told that
    there are no functions."""

    async def connect(*_: object) -> QuietLink:
        raise AssertionError("nobody connects")

    exchange = Exchange("w1", Limits(), connect)
    link = QuietLink()

    with pytest.raises(UnavailableError, match="not joined"):
        exchange.accepted(link, Hello("~client"))
    assert not link.others
