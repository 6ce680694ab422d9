"""The key that all workers of a cluster share, by which they know one another on links.

It is in the directory: whoever can read that can be a worker anyway. Instances are given a key
that is derived from it, for one name at one worker: who has that can serve leases there, once, and
nothing else.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable

from sublet.functions.address import is_instance
from sublet.functions.errors import RetryLaterError
from sublet.statestore.contract import Directory

KEY_BYTES = 32
ASK_AGAIN_S = 1.0
"""Whoever knows no key can make a worker ask its directory so often, and no more."""


def instance_key(cluster_key: bytes, instance: str, worker: str) -> bytes:
    """Return what an instance has to know that is to serve a worker."""
    return hmac.digest(cluster_key, f"sublet-instance-1\0{instance}\0{worker}".encode(), "sha256")


class ClusterKey:
    """What a worker of this id knows of the key."""

    def __init__(
        self,
        worker: str,
        directory: Directory,
        is_invited: Callable[[str], bool] = lambda instance: False,
    ) -> None:
        """`is_invited` tells whether an instance of this name is wanted here."""
        self.worker = worker
        self._directory = directory
        self._is_invited = is_invited
        self._key = b""
        self._doubted = asyncio.Event()

    def key_of(self, endpoint: str) -> bytes | None:
        """All workers have the same, and each instance its own."""
        if not self._key:
            return None
        if is_instance(endpoint):
            return self.key_for(endpoint) if self._is_invited(endpoint) else None
        return self._key

    def key_for(self, instance: str) -> bytes:
        """Return the key of an instance that is to serve this worker."""
        return self.key_between(instance, self.worker)

    def key_between(self, instance: str, worker: str) -> bytes:
        """Return the key of an instance that is to serve a worker of the cluster."""
        return instance_key(self._key, instance, worker)

    def proof_failed(self, endpoint: str) -> None:
        """Somebody seems to know another one: the directory may have lost ours since."""
        self._doubted.set()

    async def follow(self) -> None:
        """Read the key, and again whenever it is in doubt, until cancelled.

        Before it was read nobody is let in, which peers take as "not yet".
        """
        while True:
            await self._learn()
            await asyncio.sleep(ASK_AGAIN_S)
            await self._doubted.wait()
            self._doubted.clear()

    async def _learn(self) -> None:
        # The first worker of a cluster makes it.
        proposed = self._key or secrets.token_bytes(KEY_BYTES)
        while True:
            try:
                self._key = await self._directory.cluster_key(proposed)
                return
            except RetryLaterError as error:
                await asyncio.sleep(error.retry_after_ms / 1000)
