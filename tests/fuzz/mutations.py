"""Damaged bytes for hypothesis: what is valid, with a few edits that storage or a network makes."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

INTERESTING = (b"\x00", b"\x7f", b"\x80", b"\xff", b"\xc0", b"\xc1", b"\xdd\xff\xff\xff\xff")
"""Signs, nil, the one byte that msgpack never uses, and an array of four thousand million items."""


@st.composite
def damaged(draw: st.DrawFn, seeds: Sequence[bytes]) -> bytes:
    """Return a seed with up to four edits, or bytes that nobody has written."""
    if draw(st.integers(0, 9)) == 0:
        return draw(st.binary(max_size=64))
    data = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.integers(0, 5)):
            case 0:
                del data[at:]
            case 1:
                del data[at : at + draw(st.integers(1, 8))]
            case 2:
                data[at:at] = draw(st.binary(min_size=1, max_size=8))
            case 3:
                data[at : at + 1] = draw(st.sampled_from(INTERESTING))
            case 4:
                data[at:at] = data[at : at + draw(st.integers(1, 32))]
            case _:
                if at < len(data):
                    data[at] ^= 1 << draw(st.integers(0, 7))
    return bytes(data)
