"""The bounds themselves are bounded."""

from __future__ import annotations

from dataclasses import fields

import msgspec
import pytest

from sublet.functions.codec import join_column
from sublet.functions.context import CALL_DEPTH_MAX
from sublet.runtime.config.limits import HIGHEST, Limits
from sublet.runtime.links.link import LinkLimits
from sublet.runtime.protocol.frames import Batch, Data, Extra, Kind
from sublet.runtime.protocol.wire.frames import encode_frame


@pytest.mark.parametrize("name", [each.name for each in fields(Limits)])
def test_a_bound_below_one_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} is 0; allowed: 1"):
        Limits(**{name: 0})


@pytest.mark.parametrize(("name", "highest"), HIGHEST.items())
def test_a_bound_that_no_frame_can_hold_is_refused(name: str, highest: int) -> None:
    Limits(**{name: highest})
    with pytest.raises(ValueError, match=rf"{name} is {highest + 1}; allowed: 1..{highest}"):
        Limits(**{name: highest + 1})


def test_the_largest_message_of_the_deepest_call_fits_a_frame() -> None:
    name = "a" * 100 + "/" + "f" * 100
    key = "k" * HIGHEST["key_bytes_max"]
    extra = Extra("i" * 256, [f"{name}[{key}]"] * CALL_DEPTH_MAX, "t" * 64)
    payload = msgspec.msgpack.encode(bytes(HIGHEST["message_bytes_max"] - 5))
    assert len(payload) == HIGHEST["message_bytes_max"]
    column = msgspec.Raw(join_column([payload]))
    batch = Batch(f"{name}/1023", f"{name}/1023", 1, Kind.CALL, [key], column, 1, 1, {0: extra})

    frame = encode_frame(Data([batch]))

    assert len(frame) <= LinkLimits().frame_bytes_max
