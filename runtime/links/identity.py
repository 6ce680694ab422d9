"""How workers prove to each other that they are workers, before any other frame is heard.

Both ends show that they know one secret without telling it: a proof is good for one opening of one
link, for one direction, between these two names. Workers share the key of their cluster, which is
in the directory. Without TLS, who can change what travels can still take over a link that is open.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Protocol

import msgspec

from sublet.runtime.protocol.frames import Challenge, Hello, Proof

NONCE_BYTES = 32
NONCE_BYTES_MIN = 16
_VERSION = b"sublet-link-1"


class PeerKeys(Protocol):
    """The secrets of those who may open links beside clients."""

    @property
    def worker(self) -> str:
        """Whose they are."""
        ...

    def key_of(self, endpoint: str) -> bytes | None:
        """Return what somebody of this name has to know; None if nobody has this name."""
        ...

    def proof_failed(self, endpoint: str) -> None:
        """A proof was wrong: perhaps our own secret is an old one."""
        ...


class NoPeers:
    """Nobody but clients may open links."""

    worker = ""

    def key_of(self, endpoint: str) -> bytes | None:
        return None

    def proof_failed(self, endpoint: str) -> None:
        pass


class Challenged:
    """The opening of a link, at the worker that was called."""

    def __init__(self, peers: PeerKeys, hello: Hello) -> None:
        self._peers = peers
        self._hello = hello
        self._key = peers.key_of(hello.endpoint)
        self._nonce = secrets.token_bytes(NONCE_BYTES)

    def challenge(self) -> Challenge | None:
        """Return what to ask; None if the name, or the way it asks, is nobody's."""
        is_for_me = self._hello.called == self._peers.worker
        if self._key is None or not is_for_me or len(self._hello.nonce) < NONCE_BYTES_MIN:
            return None
        return Challenge(self._nonce, _proof(self._key, b"called", self._hello, self._nonce))

    def is_met(self, answer: Proof) -> bool:
        assert self._key is not None, "nothing was asked"
        expected = _proof(self._key, b"caller", self._hello, self._nonce)
        if hmac.compare_digest(expected, answer.proof):
            return True
        self._peers.proof_failed(self._hello.endpoint)
        return False


class Claim:
    """The opening of a link, at who calls and is no client."""

    def __init__(self, peers: PeerKeys, hello: Hello) -> None:
        self._peers = peers
        self.hello = msgspec.structs.replace(hello, nonce=secrets.token_bytes(NONCE_BYTES))
        self.is_answered = False
        """Whether the other end has proved itself: its welcome is worth nothing before."""

    def answer(self, challenge: Challenge) -> Proof | None:
        """Return the proof; None if the other end is not the worker that was called."""
        key = self._peers.key_of(self.hello.endpoint)
        if key is None or len(challenge.nonce) < NONCE_BYTES_MIN:
            return None
        expected = _proof(key, b"called", self.hello, challenge.nonce)
        if not hmac.compare_digest(expected, challenge.proof):
            self._peers.proof_failed(self.hello.called)
            return None
        self.is_answered = True
        return Proof(_proof(key, b"caller", self.hello, challenge.nonce))


def _proof(key: bytes, role: bytes, hello: Hello, nonce: bytes) -> bytes:
    parts = (
        *(_VERSION, role, hello.endpoint.encode(), hello.called.encode()),
        *(hello.nonce, hello.lane_token.encode(), nonce),
    )
    # Lengths, so that no two openings have the same text.
    text = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return hmac.digest(key, text, "sha256")
