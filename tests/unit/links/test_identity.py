"""Who may open a link as a worker: the rules, without a network."""

from __future__ import annotations

import itertools
import secrets
from typing import NamedTuple

import pytest

from sublet.runtime.links.identity import Challenged, Claim, NoPeers, PeerKeys
from sublet.runtime.protocol.frames import Challenge, Hello, Proof

KEY = b"k" * 32


class Worker:
    def __init__(self, worker: str, key: bytes | None = KEY) -> None:
        self.worker = worker
        self.doubts: list[str] = []
        self._key = key

    def key_of(self, endpoint: str) -> bytes | None:
        return self._key

    def proof_failed(self, endpoint: str) -> None:
        self.doubts.append(endpoint)


class Opened(NamedTuple):
    challenge: Challenge
    proof: Proof
    is_met: bool


def opening(caller: PeerKeys, called: PeerKeys, name: str = "b") -> Opened | None:
    """Open a link; None if one of the two will not."""
    claim = Claim(caller, Hello(caller.worker, called=name))
    challenged = Challenged(called, claim.hello)
    challenge = challenged.challenge()
    if challenge is None:
        return None
    proof = claim.answer(challenge)
    assert claim.is_answered is (proof is not None)
    return None if proof is None else Opened(challenge, proof, challenged.is_met(proof))


def test_two_workers_of_a_cluster_know_each_other() -> None:
    opened = opening(Worker("a"), Worker("b"))

    assert opened is not None
    assert opened.is_met


@pytest.mark.parametrize("called", [Worker("b", b"o" * 32), Worker("b", None), NoPeers()])
def test_who_knows_another_key_or_none_is_not_answered(called: PeerKeys) -> None:
    """Not even the proof is told, which a stranger could carry elsewhere."""
    assert opening(Worker("a"), called) is None


def test_both_ask_for_the_key_again_when_a_proof_is_wrong() -> None:
    """The directory may have lost the old one."""
    caller, called = Worker("a"), Worker("b", b"o" * 32)
    opening(caller, called)
    hello = Claim(caller, Hello("a", called="b")).hello
    Challenged(called, hello).is_met(Proof(b"guessed"))

    assert caller.doubts == ["b"]
    assert called.doubts == ["a"]


def test_a_worker_that_was_taken_for_another_one_does_not_answer() -> None:
    """Addresses are used again by others."""
    assert opening(Worker("a"), Worker("c"), name="b") is None


def test_no_proof_is_good_for_anything_else() -> None:
    """Not for another opening, direction or name, nor are the two proofs of an opening alike."""
    caller, called = Worker("a"), Worker("b")
    first, second = opening(caller, called), opening(caller, called)
    assert first is not None
    assert second is not None
    other = opening(Worker("c"), called)
    assert other is not None
    proofs = [
        each
        for opened in (first, second, other)
        for each in (opened.challenge.proof, opened.proof.proof)
    ]

    assert len(set(proofs)) == len(proofs)
    for stolen in proofs:
        challenged = Challenged(called, Claim(caller, Hello("a", called="b")).hello)
        challenged.challenge()
        assert not challenged.is_met(Proof(stolen))


def test_no_two_openings_have_the_same_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that run into each other: `ab` and `c`, `a` and `bc`."""
    nonce = b"n" * 32
    proofs = set()
    for caller, called, token in itertools.product(("a", "ab"), ("b", "bb"), ("", "b")):
        keys = Worker(called)
        monkeypatch.setattr(secrets, "token_bytes", lambda _: nonce)
        hello = Hello(caller, lane_token=token, called=called, nonce=nonce)
        challenge = Challenged(keys, hello).challenge()
        assert challenge is not None
        proofs.add(challenge.proof)

    assert len(proofs) == 8


@pytest.mark.parametrize("nonce", [b"", b"x" * 15])
def test_a_nonce_that_can_be_guessed_is_refused(nonce: bytes) -> None:
    assert Challenged(Worker("b"), Hello("a", called="b", nonce=nonce)).challenge() is None
    claim = Claim(Worker("a"), Hello("a", called="b"))
    assert claim.answer(Challenge(nonce, b"")) is None
