"""The description of functions, for programs and for people."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest

from sublet import App, Context
from sublet.runtime.config.limits import Limits
from sublet.runtime.http.docs_page import ASSETS, asset, docs_page
from sublet.runtime.http.errors import STATUS_BY_CODE
from sublet.runtime.http.openapi import describe, examples_of


class Item(msgspec.Struct):
    sku: str
    n: int = 1


class Line(pydantic.BaseModel):
    text: str


class Letter(pydantic.BaseModel):
    lines: list[Line]


@dataclass
class Parcel:
    items: list[Item]
    letter: Letter


app = App("shop", partitions=1)


@app.function
def buy(ctx: Context, item: Item) -> Parcel:
    """Buy <an item>.

    Takes it from the stock.

    Example: {"sku": "tea"}
    Example: {"sku": 3}
    Example: of something else
    """
    raise NotImplementedError


@app.function(kind="stateless")
def ping(ctx: Context) -> str:
    return "pong"


@app.function(kind="stateful")
def total(ctx: Context, amount: int) -> int:
    return amount


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return describe(app.functions, Limits())


def test_each_function_has_its_own_path_by_its_kind(document: dict[str, Any]) -> None:
    functions = [path for path in document["paths"] if path.startswith("/functions/")]

    assert functions == [
        "/functions/shop/buy/{key}",
        "/functions/shop/ping",
        "/functions/shop/total",
        "/functions/shop/total/{key}",
    ]
    assert "requestBody" not in document["paths"]["/functions/shop/ping"]["post"]


def test_state_is_described_where_there_is_any(document: dict[str, Any]) -> None:
    states = [path for path in document["paths"] if path.startswith("/state/")]

    assert states == [
        "/state/shop/buy/{key}",
        "/state/shop/buy",
        "/state/shop/total/{key}",
        "/state/shop/total",
    ]


def test_types_are_components_whoever_made_them(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]

    assert {"Item", "Parcel", "Letter", "Line", "Problem"} <= schemas.keys()
    assert schemas["Parcel"]["properties"]["letter"] == {"$ref": "#/components/schemas/Letter"}
    assert schemas["Item"]["properties"]["n"]["maximum"] == 2**64 - 1


def test_every_reference_leads_somewhere(document: dict[str, Any]) -> None:
    found: list[str] = []

    def search(part: Any) -> None:
        if isinstance(part, dict):
            found.extend(value for name, value in part.items() if name == "$ref")
            for each in part.values():
                search(each)
        elif isinstance(part, list):
            for each in part:
                search(each)

    search(document)
    assert found
    for reference in found:
        assert reference.rpartition("/")[2] in document["components"]["schemas"]


def test_a_model_that_has_the_name_of_a_struct_keeps_apart() -> None:
    others = App("others")

    class Item(pydantic.BaseModel):  # Shadows the struct on purpose.
        price: float

    def sell(ctx: Context, item: Any) -> None: ...

    sell.__annotations__["item"] = Item
    others.function(sell)
    schemas = describe({**app.functions, **others.functions}, Limits())["components"]["schemas"]

    assert "sku" in schemas["Item"]["properties"]
    assert "price" in schemas["pydantic.Item"]["properties"]


def test_examples_that_fit_come_from_the_docstring(document: dict[str, Any]) -> None:
    operation = document["paths"]["/functions/shop/buy/{key}"]["post"]
    content = operation["requestBody"]["content"]["application/json"]

    assert examples_of(buy) == [{"sku": "tea"}]
    assert content["examples"] == {"1": {"value": {"sku": "tea"}}}
    assert operation["summary"] == "Buy <an item>."
    assert operation["description"] == "Takes it from the stock."


def test_every_status_of_a_call_is_described(document: dict[str, Any]) -> None:
    responses = document["paths"]["/functions/shop/total"]["post"]["responses"]

    for status in (200, 202, 400, 404, 406, 409, 413, 415, 422, 429, 500, 503, 504):
        assert str(status) in responses
    assert "Retry-After" in responses["429"]["headers"]
    assert set(document["components"]["schemas"]["Problem"]["properties"]["code"]["enum"]) == set(
        STATUS_BY_CODE
    )


def test_operations_have_names_of_their_own(document: dict[str, Any]) -> None:
    names = [
        operation["operationId"]
        for item in document["paths"].values()
        for operation in item.values()
    ]

    assert len(names) == len(set(names))


def test_the_page_shows_every_path_and_escapes_what_users_wrote(document: dict[str, Any]) -> None:
    page = docs_page(document)

    for path in document["paths"].keys() - {"/docs"}:
        shown = path.replace("{", "<var>{").replace("}", "}</var>")
        assert f"<code>{shown}</code>" in page
    assert "Buy &lt;an item&gt;." in page
    assert "-d &#x27;{&quot;sku&quot;:&quot;tea&quot;}&#x27;" in page


def test_the_page_is_named_after_the_apps(document: dict[str, Any]) -> None:
    other = App("bank")
    other.function(name="account")(lambda ctx: None)
    both = describe({**app.functions, **other.functions}, Limits())

    assert "<h1>shop</h1>" in docs_page(document)
    assert both["info"]["title"] == "bank, shop"
    assert describe({}, Limits())["info"]["title"] == "Sublet"


def test_the_page_says_once_what_is_the_same_for_all_functions(document: dict[str, Any]) -> None:
    page = docs_page(document)

    for text in ("Idempotency-Key</code>", "<code>handler_timeout</code>"):
        assert page.count(text) == 1


def test_the_page_loads_nothing_but_its_own_files(document: dict[str, Any]) -> None:
    page = docs_page(document)

    loaded = re.findall(r"(?:src|href)='([^'#]+)'", page)
    assert {"docs/sublet.css", "docs/docs.js", "openapi.json", "metrics"} <= set(loaded)
    # Relative, so that it works behind a prefix.
    assert [each for each in loaded if each.startswith(("/", "http", "//"))] == []
    assert page.count("<script") == 1
    assert " style=" not in page
    for name in ASSETS:
        text = asset(name).decode()
        assert "http:" not in text
        assert "https:" not in text
        assert "@import" not in text
        assert "innerHTML" not in text
