"""Egress names: what can be one, and what an app declares."""

from __future__ import annotations

from typing import Any

import pytest

from sublet import NO_RETRY, App, Context
from sublet.functions.egress import NAME_BYTES_MAX, check_egress_name
from sublet.functions.errors import HandlerError
from sublet.testing import Harness


def app_that_emits(**options: Any) -> App:
    app = App("shop", **options)

    @app.function(retry=NO_RETRY)
    def order(ctx: Context, egress: str) -> None:
        ctx.emit(egress, ctx.key)

    return app


def test_without_a_declaration_any_name_will_do() -> None:
    with Harness(app_that_emits()) as harness:
        harness.call("shop/order", "a", "whatever")

        assert harness.emitted("whatever") == ["a"]


def test_a_declared_name_can_be_emitted_to() -> None:
    with Harness(app_that_emits(egress=("orders", "alerts"))) as harness:
        harness.call("shop/order", "a", "orders")

        assert harness.emitted("orders") == ["a"]


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        (["orders"], "shop declares no egress 'ordres'; did you mean orders? known: orders"),
        ([], "shop declares no egress 'ordres'; known: none"),
    ],
)
def test_a_name_that_is_not_declared_is_an_error_where_it_is_emitted_to(
    declared: list[str], told: str
) -> None:
    with Harness(app_that_emits(egress=declared)) as harness:
        with pytest.raises(HandlerError) as failed:
            harness.call("shop/order", "a", "ordres")

        assert told in str(failed.value)
        assert harness.emitted("ordres") == []


def test_one_name_is_no_list_of_names() -> None:
    with pytest.raises(TypeError, match=r"egress is 'orders'; allowed: a list .* \['orders'\]"):
        App("shop", egress="orders")


@pytest.mark.parametrize("name", ["", "x" * (NAME_BYTES_MAX + 1), "\ud800"])
def test_what_nobody_could_read_from_is_no_name(name: str) -> None:
    with pytest.raises(ValueError, match="egress name"):
        check_egress_name(name)
    with pytest.raises(ValueError, match="egress name"):
        App("shop", egress=[name])


def test_a_name_may_be_as_long_as_a_reader_may_ask_for() -> None:
    check_egress_name("x" * NAME_BYTES_MAX)
