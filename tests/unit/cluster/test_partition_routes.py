"""Where the keys of functions live, of this worker's and of others'."""

from __future__ import annotations

import pytest

from sublet.functions.address import partition_index_of
from sublet.functions.errors import UnknownFunctionError
from sublet.runtime.cluster.partition_routes import PartitionRoutes
from sublet.runtime.protocol.frames import FunctionInfo


def test_a_function_that_only_other_workers_have_is_found_once_it_is_known() -> None:
    """A handler that sent to a function of another app on the same store was told that there is
    none, and its message failed for good."""
    routes = PartitionRoutes({"visits/visit": (4, "keyed")})
    with pytest.raises(UnknownFunctionError, match="known: visits/visit"):
        routes.partition_of("orders/order", "anna")

    routes.learn([FunctionInfo("orders/order", 1, "keyed")])

    assert routes.partition_of("orders/order", "anna") == "orders/order/0"


def test_what_others_say_of_our_own_functions_changes_nothing() -> None:
    """A worker that lacks a function takes it for a keyed one, unless somebody tells its kind."""
    routes = PartitionRoutes({"visits/spread": (2, "stateless")})
    routes.learn([FunctionInfo("visits/spread", 2, "keyed")])

    found = {routes.partition_of("visits/spread", "anna") for _ in range(2)}
    assert found == {"visits/spread/0", "visits/spread/1"}


@pytest.mark.parametrize(("kind", "key"), [("stateless", ""), ("stateless", "a"), ("stateful", "")])
def test_with_an_idempotency_key_everybody_chooses_the_same_partition(kind: str, key: str) -> None:
    for number in range(20):
        once = f"order {number}"
        both = [PartitionRoutes({"visits/visit": (16, kind)}) for _ in range(2)]
        for turn, routes in enumerate(both):
            for _ in range(turn):
                routes.partition_of("visits/visit", key)  # They are not at the same turn.

        found = {each.partition_of("visits/visit", key, once) for each in both}
        assert found == {f"visits/visit/{partition_index_of(once, 16)}"}


@pytest.mark.parametrize("kind", ["keyed", "stateful"])
def test_where_the_key_decides_an_idempotency_key_does_not(kind: str) -> None:
    routes = PartitionRoutes({"visits/visit": (16, kind)})

    found = {routes.partition_of("visits/visit", "anna", f"order {each}") for each in range(20)}
    assert found == {f"visits/visit/{partition_index_of('anna', 16)}"}


def test_an_idempotency_key_that_is_the_key_does_not_end_the_spreading() -> None:
    routes = PartitionRoutes({"visits/spread": (2, "stateless")})
    routes.partition_of("visits/spread", "anna", "anna")

    found = {routes.partition_of("visits/spread", "anna") for _ in range(2)}
    assert found == {"visits/spread/0", "visits/spread/1"}


def test_the_kind_of_a_function_of_others_is_learned_when_it_is_told() -> None:
    routes = PartitionRoutes({})
    routes.learn([FunctionInfo("visits/spread", 2, "keyed")])
    routes.partition_of("visits/spread", "anna")
    routes.learn([FunctionInfo("visits/spread", 2, "stateless")])

    found = {routes.partition_of("visits/spread", "anna") for _ in range(2)}
    assert found == {"visits/spread/0", "visits/spread/1"}


def test_a_function_is_found_by_all_of_its_names() -> None:
    routes = PartitionRoutes({"shop/cart": (4, "keyed")}, {"shop/basket": "shop/cart"})
    assert routes.partition_of("shop/basket", "ada") == routes.partition_of("shop/cart", "ada")

    routes.learn([FunctionInfo("desk/add", 2, "keyed", aliases=["desk/plus"])])
    assert routes.partition_of("desk/plus", "ada") == routes.partition_of("desk/add", "ada")
    assert routes.partition_of("desk/plus", "ada").startswith("desk/add/")
