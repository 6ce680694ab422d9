"""Types and examples for people, from JSON Schema."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from html import escape
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pydantic
import pytest

from sublet import App, Context
from sublet.functions.app import Function
from sublet.runtime.config.limits import Limits
from sublet.runtime.http.content import JSON_TYPE
from sublet.runtime.http.openapi import describe
from sublet.runtime.http.schema_text import example, fields_text, type_text

TEXT, NUMBER = {"type": "string"}, {"type": "integer"}


class Size(enum.Enum):
    SMALL = "small"


@dataclass
class Item:
    sku: str
    n: int = 1


@dataclass
class Everything:
    text: Annotated[str, msgspec.Meta(min_length=9)]
    above: Annotated[int, msgspec.Meta(gt=41)]
    below: Annotated[int, msgspec.Meta(le=-3)]
    step: Annotated[int, msgspec.Meta(multiple_of=5)]
    share: float
    flag: bool
    nothing: None
    data: bytes
    id: UUID
    price: Decimal
    day: date
    at: datetime
    clock: time
    late: datetime | None
    times: list[datetime]
    by_name: dict[str, time]
    pause: timedelta
    size: Size
    kind: Literal["a", "b"]
    items: list[Item]
    pair: tuple[int, str]
    either: int | str
    anything: Any
    tags: Annotated[frozenset[str], msgspec.Meta(min_length=1)]
    more: dict[str, Item] = field(default_factory=dict)


@dataclass
class Tree:
    children: list[Tree]


class Person(pydantic.BaseModel):
    name: str
    born: datetime
    number: int = pydantic.Field(ge=3)


def function_of(message: Any) -> Function:
    app = App("shop")

    @app.function
    def buy(ctx: Context, each: Any) -> None:
        pass

    def typed(ctx: Context, each: Any) -> None:
        pass

    typed.__annotations__["each"] = message
    return app.function(name="typed")(typed)


@pytest.mark.parametrize(
    "message", [Everything, Item, Person, Tree, list[Item], int, str, datetime, dict[str, int]]
)
def test_the_example_of_a_type_fits_it(message: Any) -> None:
    function = function_of(message)
    document = describe({function.name: function}, Limits())
    content = document["paths"][f"/functions/{function.name}/{{key}}"]["post"]["requestBody"]
    schema = content["content"][JSON_TYPE]["schema"]

    made = example(schema, document["components"]["schemas"])

    function.message_codec.decode_json(msgspec.json.encode(made))


@pytest.mark.parametrize("kind", ["object", "array"])
def test_a_type_of_which_no_value_ends_has_no_example(kind: str) -> None:
    reference = {"$ref": "#/components/schemas/Tree"}
    tree = {"type": kind, "properties": {"child": reference}, "required": ["child"]}
    tree |= {"items": reference, "minItems": 1}

    assert example(reference, {"Tree": tree}) is None


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({}, "anything"),
        (TEXT, "text"),
        ({"type": "string", "format": "uuid"}, "text (uuid)"),
        ({"type": "string", "contentEncoding": "base64"}, "text (base64)"),
        ({"type": "null"}, "null"),
        ({"type": ["string", "null"]}, "text | null"),
        ({"anyOf": [NUMBER, {"type": "null"}]}, "integer | null"),
        ({"enum": ["a", 2]}, '"a" | 2'),
        ({"const": "ready"}, '"ready"'),
        ({"type": "array", "items": TEXT}, "list of text"),
        ({"type": "array"}, "list"),
        ({"type": "array", "prefixItems": [TEXT, NUMBER], "items": False}, "[text, integer]"),
        ({"type": "object"}, "object"),
        ({"type": "object", "additionalProperties": NUMBER}, "{text: integer}"),
        ({"$ref": "#/components/schemas/Item"}, "Item"),
    ],
)
def test_a_type_is_told_in_a_few_words(schema: dict[str, Any], text: str) -> None:
    assert type_text(schema) == text


def test_fields_are_told_in_one_line() -> None:
    item = {"properties": {"sku": TEXT, "n": NUMBER}, "required": ["sku"]}
    reference = {"$ref": "#/components/schemas/Item"}

    assert fields_text(reference, {"Item": item}, str, str) == "{ sku: text, n?: integer }"
    assert fields_text(TEXT, {"Item": item}, str, str) == ""


def test_names_and_values_are_escaped_by_whoever_shows_them() -> None:
    schema = {"anyOf": [{"$ref": "#/components/schemas/A<b>"}, {"enum": ["<i>"]}]}

    assert type_text(schema, lambda name: f"[{escape(name)}]", escape) == (
        "[A&lt;b&gt;] | &quot;&lt;i&gt;&quot;"
    )
