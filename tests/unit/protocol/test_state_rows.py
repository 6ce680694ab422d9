"""Rows of states, as columns: all of them come out as they went in."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from sublet.runtime.protocol.lease_messages import StatePlace, StateRows

subkeys = st.sampled_from([b"", b"a", b"b"])
values = st.none() | st.binary(max_size=3)
times = st.none() | st.integers(-(2**62), 2**62)
rows = st.lists(st.tuples(st.integers(0, 9), subkeys, values, times), max_size=6)


@given(rows)
def test_rows_travel_as_they_are(given_rows: list[StatePlace]) -> None:
    sent = msgspec.msgpack.encode(StateRows.of(given_rows))
    back = msgspec.msgpack.decode(sent, type=StateRows)

    assert back.is_even()
    assert list(back.each()) == given_rows


def test_what_all_rows_have_in_common_is_not_said() -> None:
    whole = StateRows.of([(0, b"", b"\x01", None), (3, b"", None, None)])
    parts = StateRows.of([(0, b"x", b"\x01", None), (0, b"", b"\x02", 7)])

    assert (whole.subkeys, whole.expires_ms) == (None, None)
    assert (parts.subkeys, parts.expires_ms) == ([b"x", b""], [None, 7])


def test_columns_of_different_lengths_are_noticed() -> None:
    assert not StateRows([0, 1], [b""]).is_even()
    assert not StateRows([0], [b""], [b"", b""]).is_even()
    assert not StateRows([0], [b""], None, []).is_even()
