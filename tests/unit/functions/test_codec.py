from __future__ import annotations

import enum
import inspect
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from sublet.functions.codec import (
    codec_for,
    column_length,
    is_immutable,
    join_column,
    split_column,
)
from sublet.functions.errors import EncodeError, PayloadError


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(NamedTuple):
    x: int
    y: int


class Options(TypedDict, total=False):
    name: str
    size: int


@dataclass
class Item:
    sku: str
    amount: int = 1


@dataclass
class Cart:
    items: list[Item] = field(default_factory=list)
    parent: Cart | None = None


class Order(msgspec.Struct):
    id: UUID
    items: list[Item] = []


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    name: str


class Account(pydantic.BaseModel):
    id: UUID
    balance: Decimal = Decimal(0)
    opened: datetime | None = None
    nick: str = pydantic.Field(default="", alias="nickName")

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def rich(self) -> bool:
        return self.balance > 1000


class StrictAccount(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, extra="forbid")

    id: UUID
    opened: datetime


@dataclass
class Holder:
    account: Account
    others: dict[str, Account]


ID = UUID("00000000-0000-4000-8000-000000000001")
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("of", "value"),
    [
        (int, -(2**63)),
        (int, 2**64 - 1),
        (float, 1.5),
        (bool, True),
        (str, "grüß"),
        (bytes, b"\x00\xff"),
        (None, None),
        (Any, {"a": [1, None, "x", b"y", 1.5]}),
        (inspect.Parameter.empty, [1]),
        (datetime, NOON),
        (date, date(2026, 1, 2)),
        (timedelta, timedelta(seconds=3)),
        (Decimal, Decimal("1.10")),
        (UUID, ID),
        (Colour, Colour.RED),
        (Literal["a", "b"], "a"),
        (Annotated[int, msgspec.Meta(ge=0)], 3),
        (Point, Point(1, 2)),
        (Options, {"name": "x"}),
        (Item, Item("a", 2)),
        (Cart, Cart([Item("a")], Cart())),
        (Order, Order(ID, [Item("b")])),
        (set[int], {1, 2}),
        (frozenset[Point], frozenset({Point(1, 2)})),
        (tuple[int, ...], (1, 2, 3)),
        (dict[int, Item], {1: Item("a")}),
        (int | str | None, "x"),
        (Cat | Dog, Dog("rex")),
        (Account, Account(id=ID, balance=Decimal("5.5"), opened=NOON, nickName="x")),
        (StrictAccount, StrictAccount(id=ID, opened=NOON)),
        (list[Account], [Account(id=ID)]),
        (Account | None, None),
        (Holder, Holder(Account(id=ID), {"a": Account(id=ID, nickName="y")})),
    ],
)
def test_a_value_comes_back_as_it_was_alone_and_in_a_column(of: Any, value: Any) -> None:
    codec = codec_for(of)

    assert codec.decode(codec.encode(value)) == value
    assert codec.decode(Raw(codec.encode(value))) == value
    column = codec.encode_column([value, value])
    assert codec.decode_column(column) == [value, value]
    assert column == join_column([codec.encode(value)] * 2)


def test_a_codec_is_made_once() -> None:
    assert codec_for(list[int]) is codec_for(list[int])
    assert codec_for(inspect.Parameter.empty) is codec_for(Any)


def test_a_pydantic_model_is_read_by_alias_too() -> None:
    data = msgspec.msgpack.encode({"id": str(ID), "nickName": "x"})

    assert codec_for(Account).decode(data) == Account(id=ID, nickName="x")


class Plain:
    pass


@dataclass
class HoldsPlain:
    parts: dict[str, list[Plain]]


@pytest.mark.parametrize(
    ("of", "names"),
    [
        (Plain, "Plain"),
        (HoldsPlain, r"Plain \(in .*HoldsPlain\.parts\[…\]\[…\]\)"),
        (list[socket.socket], "socket.socket"),
        (Callable[[], int], "Callable"),
        (deque, "deque"),
        (complex, "complex"),
        (object, "object"),
        (Item | Order, "not supported"),
        ("Cart", "Cart"),
        (3, "3"),
    ],
)
def test_a_type_that_cannot_travel_is_refused_when_it_is_declared(of: Any, names: str) -> None:
    with pytest.raises(TypeError, match=names) as caught:
        codec_for(of)
    assert "allowed: None, bool, int" in str(caught.value)


def test_an_unencodable_value_is_named_with_its_place() -> None:
    with socket.socket() as unencodable:
        values = {"a": [1, Item("x", unencodable)]}  # type: ignore[arg-type]
        with pytest.raises(
            EncodeError, match=r"of type socket\.socket at `\$\['a'\]\[1\]\.amount`; allowed: None"
        ):
            codec_for(Any).encode(values)
        with pytest.raises(EncodeError, match=r"of type socket\.socket; allowed"):
            codec_for(Any).encode(unencodable)


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"n": 2**64}, r"int at `\$\['n'\]`; allowed: -2\*\*63"),
        ("\ud800", "surrogates not allowed"),
        (_nested(100_000), "nested too deeply"),
        ({"x": Plain}, r"of type type at `\$\['x'\]`"),
        ([1j], r"of type complex at `\$\[0\]`"),
    ],
)
def test_what_msgpack_cannot_hold_is_an_encode_error(value: Any, text: str) -> None:
    for encode in (codec_for(Any).encode, codec_for(Any).encode_canonical):
        with pytest.raises(EncodeError, match=text):
            encode(value)
    with pytest.raises(EncodeError):
        codec_for(Any).encode_column([value])


def test_equal_sets_have_one_canonical_form() -> None:
    codec = codec_for(frozenset[str])
    names = [f"name{number}" for number in range(50)]

    assert codec.encode_canonical(frozenset(names)) == codec.encode_canonical(
        frozenset(reversed(names))
    )


@dataclass
class Picky:
    size: int

    def __post_init__(self) -> None:
        if self.size < 0:
            raise KeyError("negative")


@pytest.mark.parametrize(
    ("of", "data", "text"),
    [
        (Item, {"sku": "a", "amount": "x"}, r"Expected `int`, got `str` - at `\$\.amount`"),
        (Account, {"id": "no"}, r"id: Input should be a valid UUID"),
        (Holder, {"account": {"id": "no"}, "others": {}}, r"at `\$\.account`"),
        (Picky, {"size": -1}, "KeyError: 'negative'"),
        (int, True, "got `bool`"),
        (Colour, "green", "green"),
    ],
)
def test_a_payload_of_another_shape_is_refused_with_its_place(
    of: Any, data: Any, text: str
) -> None:
    encoded = msgspec.msgpack.encode(data)
    with pytest.raises(PayloadError, match=text):
        codec_for(of).decode(encoded)
    with pytest.raises(PayloadError, match="does not fit"):
        codec_for(of).decode_column(join_column([encoded]))


MALFORMED = [
    b"",
    b"\xc1",
    b"\x01\x01",
    b"\xa2\xff\xff",
    b"\xdd\xff\xff\xff\xff\x01",
    b"\xdf\xff\xff\xff\xff\x01",
    b"\xdb\xff\xff\xff\xff",
    b"\x91" * 1_000_000,
    b"\x91" * 1_000_000 + b"\x01",
    b"\x81\x81\x01\x01\x01",
    b"\xd7\xff\xff\xff\xff\xff\xff\xff\xff\xff",
]


@pytest.mark.parametrize("data", MALFORMED, ids=lambda data: data[:8].hex())
def test_malformed_bytes_are_refused(data: bytes) -> None:
    for decode in (
        codec_for(Any).decode,
        codec_for(Cart).decode,
        codec_for(Any).decode_column,
        codec_for(Account).decode_column,
        split_column,
    ):
        with pytest.raises(PayloadError):
            decode(data)


@given(st.binary(max_size=64))
def test_whatever_arrives_ends_in_a_value_or_a_payload_error(data: bytes) -> None:
    for of in (Any, Cart, list[Account], dict[str, Decimal], set[datetime], Cat | Dog):
        codec = codec_for(of)
        for read in (codec.decode, codec.decode_column, split_column, column_length):
            try:
                read(data)
            except PayloadError:
                continue


@pytest.mark.parametrize("count", [0, 1, 15, 16, 65_535, 65_536])
def test_a_column_is_cut_and_joined_without_looking_inside(count: int) -> None:
    column = msgspec.msgpack.encode(list(range(count)))

    items = split_column(column)

    assert column_length(column) == column_length(Raw(column)) == len(items) == count
    assert join_column(items) == column
    assert join_column([bytes(item) for item in items]) == column


@pytest.mark.parametrize("data", [b"", b"\xc0", b"\x80", b"\xdc", b"\xdd\0\0", b"\x93\x01\x02"])
def test_the_length_of_what_is_no_whole_array_is_refused(data: bytes) -> None:
    with pytest.raises(PayloadError, match=r"array|truncated"):
        column_length(data)


@dataclass(frozen=True)
class FrozenPair:
    left: int
    right: tuple[str, ...] = ()
    inner: FrozenPair | None = None


@dataclass(frozen=True)
class FrozenWithList:
    items: list[int]


class FrozenStruct(msgspec.Struct, frozen=True):
    at: datetime
    pair: FrozenPair


class FrozenModel(pydantic.BaseModel, frozen=True):
    id: UUID
    tags: frozenset[str] = frozenset()


class FrozenModelWithList(pydantic.BaseModel, frozen=True):
    tags: list[str] = []


@pytest.mark.parametrize(
    ("of", "immutable"),
    [
        (int, True),
        (str, True),
        (bytes, True),
        (None, True),
        (int | str | None, True),
        (Colour, True),
        (datetime, True),
        (Decimal, True),
        (Literal["a"], True),
        (Annotated[int, msgspec.Meta(ge=0)], True),
        (tuple[int, str], True),
        (tuple[int, ...], True),
        (frozenset[str], True),
        (Point, True),
        (FrozenPair, True),
        (FrozenStruct, True),
        (FrozenModel, True),
        (Any, False),
        (list[int], False),
        (dict[str, int], False),
        (set[int], False),
        (bytearray, False),
        (tuple, False),
        (tuple[list[int], ...], False),
        (Options, False),
        (Item, False),
        (Order, False),
        (FrozenWithList, False),
        (FrozenModelWithList, False),
        (Account, False),
        (Item | None, False),
    ],
)
def test_immutable_is_what_nobody_can_change(of: Any, immutable: bool) -> None:
    assert is_immutable(of) is immutable


def test_pydantic_is_not_loaded_for_those_who_do_not_use_it() -> None:
    program = (
        "import sys; from sublet.functions.codec import codec_for; import sublet.functions.state; "
        "codec_for(list[int]).encode([1]); sys.exit('pydantic' in sys.modules)"
    )

    subprocess.run([sys.executable, "-c", program], check=True, timeout=200)
