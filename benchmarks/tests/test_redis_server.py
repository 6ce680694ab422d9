"""A server for a measurement is there, empties itself, and is gone afterwards."""

from __future__ import annotations

import shutil

import pytest
import redis

from benchmarks.harness.redis_server import PROGRAM, RedisMissingError, RedisServer, install


@pytest.mark.skipif(shutil.which(PROGRAM) is None, reason="there is no Redis on this machine")
def test_a_server_keeps_what_it_is_told_until_it_is_cleared_or_gone() -> None:
    with RedisServer() as server, redis.Redis.from_url(server.url) as client:
        client.set("key", "value")
        assert client.get("key") == b"value"
        server.clear()
        assert client.get("key") is None

    with redis.Redis.from_url(server.url) as late, pytest.raises(redis.ConnectionError):
        late.ping()


def test_without_a_server_or_a_way_to_install_one_it_is_said_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", "")

    with pytest.raises(RedisMissingError, match="there is no redis-server in PATH; install Redis"):
        install()
