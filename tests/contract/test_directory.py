"""What every directory promises, whatever it is made of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import msgspec
import pytest

from sublet.scheduler.scaling.plan import PLAN_BYTES_MAX as WRITTEN_BYTES_MAX
from sublet.statestore.contract import (
    LEAVING_MAX,
    PLAN_BYTES_MAX,
    Directory,
    JoinRefusedError,
    Lead,
    Member,
    StoredPlan,
)

MakeDirectory = Callable[[], Directory]


def member(name: str, port: int = 1, functions: Collection[str] | None = None) -> Member:
    return Member(
        id=name,
        address=f"127.0.0.1:{port}",
        lane=f"/tmp/{name}.sock",
        pid=7,
        functions=None if functions is None else frozenset(functions),
    )


async def test_who_joins_is_seen_by_the_others(make_directory: MakeDirectory) -> None:
    one, two = make_directory(), make_directory()
    assert (await one.view()).members == {}
    first = await one.join(member("a"), {"shop/cart": 16})
    second = await two.join(member("b", 2), {"shop/cart": 16, "shop/stock": 4})

    one_has, two_has = ["shop/cart"], ["shop/cart", "shop/stock"]
    assert first.members == {"a": member("a", 1, one_has)}
    assert second.version > first.version
    assert second.members == {"a": member("a", 1, one_has), "b": member("b", 2, two_has)}
    assert second.functions == {"shop/cart": 16, "shop/stock": 4}
    assert second.placement == {}
    assert await one.view() == second


async def test_a_function_is_forgotten_with_its_placement(make_directory: MakeDirectory) -> None:
    directory = make_directory()
    joined = await directory.join(member("a"), {"shop/cart": 2, "shop/stock": 1})
    owners = dict.fromkeys(["shop/cart/0", "shop/cart/1", "shop/stock/0"], "a")
    placed = await directory.place(joined.version, owners)
    assert placed is not None
    assert await directory.forget(joined.version, "shop/cart") is None

    forgotten = await directory.forget(placed.version, "shop/cart")
    assert forgotten is not None
    assert forgotten.version > placed.version
    assert forgotten.functions == {"shop/stock": 1}
    assert forgotten.placement == {"shop/stock/0": "a"}
    assert await directory.view() == forgotten
    # With another number of partitions, as if it had never been.
    again = await directory.join(member("b", 2), {"shop/cart": 4})
    assert again.functions == {"shop/cart": 4, "shop/stock": 1}


async def test_the_number_of_partitions_is_fixed_when_a_function_is_first_seen(
    make_directory: MakeDirectory,
) -> None:
    directory = make_directory()
    before = await directory.join(member("a"), {"shop/cart": 16})
    with pytest.raises(ValueError, match="declare 16, or give the function another name"):
        await directory.join(member("b"), {"shop/new": 1, "shop/cart": 8})
    assert await directory.view() == before


async def test_everybody_sees_which_functions_a_member_has(make_directory: MakeDirectory) -> None:
    one, two = make_directory(), make_directory()
    await one.join(member("a"), {"shop/cart": 16, "shop/stock": 4})
    joined = await two.join(member("b"), {"visits/visit": 2})
    await one.beat("a")
    await two.drain("a")
    await two.place(joined.version + 1, {"shop/cart/0": "a"})

    for directory in (one, two, make_directory()):
        members = (await directory.view()).members
        assert members["a"].functions == {"shop/cart", "shop/stock"}
        assert members["a"].has("shop/stock")
        assert not members["a"].has("visits/visit")
        assert members["b"].functions == {"visits/visit"}


async def test_everybody_sees_of_which_kind_functions_are(make_directory: MakeDirectory) -> None:
    one, two = make_directory(), make_directory()
    kinds = {"shop/cart": "keyed", "shop/mail": "stateless"}
    await one.join(msgspec.structs.replace(member("a"), kinds=kinds), dict.fromkeys(kinds, 4))
    await two.join(member("b"), {"visits/visit": 2})
    await two.drain("a")

    for directory in (one, two, make_directory()):
        members = (await directory.view()).members
        assert members["a"].kinds == kinds
        assert members["b"].kinds == {}


async def test_a_member_without_functions_has_none(make_directory: MakeDirectory) -> None:
    directory = make_directory()
    joined = await directory.join(member("a"), {})

    assert joined.members["a"].functions == frozenset()
    assert not joined.members["a"].has("shop/cart")


async def test_who_joins_again_has_what_it_says_then(make_directory: MakeDirectory) -> None:
    one, two = make_directory(), make_directory()
    await one.join(member("a"), {"shop/cart": 1, "shop/stock": 1})
    await two.view()
    await one.join(member("a"), {"shop/cart": 1, "shop/new": 1})

    view = await two.view()
    assert view.members["a"].functions == {"shop/cart", "shop/new"}
    assert set(view.functions) == {"shop/cart", "shop/stock", "shop/new"}


def test_a_member_that_does_not_say_what_it_has_may_have_everything() -> None:
    """Workers of older versions do not."""
    assert member("a").has("shop/cart")
    packed = msgspec.msgpack.encode({"id": "a", "address": "127.0.0.1:1"})
    assert msgspec.msgpack.decode(packed, type=Member).has("shop/cart")


def with_code(name: str, version: str, **more: Any) -> Member:
    return msgspec.structs.replace(
        member(name), store="sqlite", machine="here", versions={"shop": version}, **more
    )


async def test_everybody_sees_which_code_members_have(make_directory: MakeDirectory) -> None:
    one, two = make_directory(), make_directory()
    joining = with_code("a", "1", state_versions={"shop/cart": 3})
    await one.join(joining, {"shop/cart": 1, "shop/new": 1})
    await one.drain("a")

    for directory in (one, two):
        found = (await directory.view()).members["a"]
        assert (found.store, found.machine, found.versions) == ("sqlite", "here", {"shop": "1"})
        assert found.state_version("shop/cart") == 3
        assert found.state_version("shop/new") == 1


async def test_other_code_of_an_app_joins_only_if_it_may(make_directory: MakeDirectory) -> None:
    one, two = make_directory(), make_directory()
    await one.join(with_code("a", "1"), {"shop/cart": 1})
    before = await two.view()
    with pytest.raises(JoinRefusedError, match=r"other code of shop \(1; this one 2\)") as refused:
        await two.join(with_code("b", "2"), {"shop/cart": 1, "shop/new": 1})
    assert refused.value.members == ["a"]
    assert await two.view() == before

    await two.join(with_code("b", "2"), {}, gone=["a"])
    await two.leave("b")
    await two.join(with_code("b", "2", upgrade=True), {})
    # Either is there, so neither is new.
    await two.join(with_code("c", "1"), {})
    await two.join(with_code("d", "2"), {})
    with pytest.raises(JoinRefusedError, match=r"and 3 more.*\(1, 2; this one 3\)"):
        await two.join(with_code("e", "3"), {})
    visits = msgspec.structs.replace(with_code("f", ""), versions={"visits": "3"})
    assert "f" in (await two.join(visits, {})).members


async def test_code_that_does_not_know_of_a_rename_is_not_let_in(
    make_directory: MakeDirectory,
) -> None:
    directory = make_directory()
    renamed = msgspec.structs.replace(
        with_code("a", "2"), aliases={"shop/basket": "shop/cart"}, kinds={"shop/cart": "keyed"}
    )
    await directory.join(renamed, {"shop/cart": 1})
    assert (await directory.view()).members["a"].aliases == {"shop/basket": "shop/cart"}
    before = msgspec.structs.replace(
        with_code("b", "1", upgrade=True), kinds={"shop/cart": "keyed"}
    )
    assert "b" in (await directory.join(before, {"shop/cart": 1})).members
    forgot = msgspec.structs.replace(
        with_code("c", "3", upgrade=True), kinds={"shop/basket": "keyed"}
    )
    with pytest.raises(JoinRefusedError, match="knows shop/basket as another name of shop/cart"):
        await directory.join(forgot, {"shop/basket": 1})
    assert set((await directory.view()).functions) == {"shop/cart"}


async def test_who_is_about_to_leave_is_in_nobodys_way(make_directory: MakeDirectory) -> None:
    directory = make_directory()
    await directory.join(with_code("a", "1"), {})
    await directory.drain("a")
    assert "b" in (await directory.join(with_code("b", "2"), {})).members


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ({"store": "memory"}, "has the store 'sqlite' and this one 'memory'"),
        ({"machine": "there"}, "on another machine, and a SQLite file must not be shared"),
    ],
)
async def test_workers_that_cannot_share_a_folder_do_not_join(
    make_directory: MakeDirectory, other: dict[str, str], told: str
) -> None:
    directory = make_directory()
    await directory.join(with_code("a", "1"), {})
    joining = msgspec.structs.replace(with_code("b", "1", upgrade=True), **other)
    with pytest.raises(JoinRefusedError, match=told):
        await directory.join(joining, {})
    # Workers of Redis are on many machines.
    await directory.leave("a")
    for name, machine in (("c", "here"), ("d", "there")):
        redis = msgspec.structs.replace(with_code(name, "1"), store="redis", machine=machine)
        await directory.join(redis, {})


@pytest.mark.parametrize("count", [0, 1025])
async def test_a_number_of_partitions_out_of_bounds_is_refused(
    make_directory: MakeDirectory, count: int
) -> None:
    with pytest.raises(ValueError, match=r"allowed: 1\.\.1024"):
        await make_directory().join(member("a"), {"shop/cart": count})


async def test_heartbeats_are_counted_and_do_not_change_the_version(
    make_directory: MakeDirectory,
) -> None:
    one, two = make_directory(), make_directory()
    joined = await one.join(member("a"), {})
    for _ in range(3):
        seen = await one.beat("a")
    assert seen is not None
    assert seen.members["a"].beat == joined.members["a"].beat + 3
    assert seen.version == joined.version
    assert await two.view() == seen


async def test_the_beats_of_a_worker_that_joins_again_go_on(make_directory: MakeDirectory) -> None:
    directory = make_directory()
    await directory.join(member("a"), {})
    seen = await directory.beat("a")
    assert seen is not None
    again = await directory.join(member("a", 2), {})
    assert again.members["a"].beat > seen.members["a"].beat
    assert again.members["a"].address == member("a", 2).address


async def test_a_worker_that_was_removed_hears_it_at_its_next_heartbeat(
    make_directory: MakeDirectory,
) -> None:
    one, two = make_directory(), make_directory()
    await one.join(member("a"), {})
    joined = await two.join(member("b"), {})
    assert await two.place(joined.version, {"f/g/0": "b"}, removed=["a"]) is not None

    assert await one.beat("a") is None
    assert await one.beat("never joined") is None
    assert set((await one.view()).members) == {"b"}


async def test_only_the_first_of_two_placements_of_one_version_counts(
    make_directory: MakeDirectory,
) -> None:
    one, two = make_directory(), make_directory()
    await one.join(member("a"), {})
    version = (await two.join(member("b"), {})).version

    results = await asyncio.gather(
        one.place(version, {"f/g/0": "a", "f/g/1": "b"}), two.place(version, {"f/g/0": "b"})
    )

    (view,) = [each for each in results if each is not None]
    assert view.version > version
    assert await one.view() == view
    assert await two.view() == view


async def test_a_placement_replaces_the_former_one(make_directory: MakeDirectory) -> None:
    directory = make_directory()
    joined = await directory.join(member("a"), {})
    first = await directory.place(joined.version, {"f/g/0": "a", "f/g/1": "a"})
    assert first is not None
    second = await directory.place(first.version, {"f/g/1": "a"})
    assert second is not None
    assert second.placement == {"f/g/1": "a"}


async def test_a_placement_may_be_newer_than_what_others_know(
    make_directory: MakeDirectory,
) -> None:
    one, two = make_directory(), make_directory()
    joined = await one.join(member("a"), {})
    known = joined.version + 10**12
    placed = await one.place(joined.version, {"f/g/0": "a"}, above=known)
    assert placed is not None
    assert placed.version == known + 1
    assert placed.placement == {"f/g/0": "a"}
    assert await two.view() == placed
    again = await two.place(placed.version, {"f/g/0": "a"}, removed=["b"], above=known)
    assert again is not None
    assert again.version == known + 2


async def test_a_placement_on_a_stranger_is_refused(make_directory: MakeDirectory) -> None:
    directory = make_directory()
    joined = await directory.join(member("a"), {})
    with pytest.raises(ValueError, match="not a member"):
        await directory.place(joined.version, {"f/g/0": "b"})
    with pytest.raises(ValueError, match="not a member"):
        await directory.place(joined.version, {"f/g/0": "a"}, removed=["a"])
    assert await directory.view() == joined


async def test_who_leaves_owns_nothing(make_directory: MakeDirectory) -> None:
    directory = make_directory()
    await directory.join(member("a"), {})
    joined = await directory.join(member("b"), {"f/g": 2})
    placed = await directory.place(joined.version, {"f/g/0": "a", "f/g/1": "b"})
    assert placed is not None
    await directory.leave("a")
    await directory.leave("a")

    view = await directory.view()
    assert view.version > placed.version
    assert set(view.members) == {"b"}
    assert view.placement == {"f/g/1": "b"}
    assert view.functions == {"f/g": 2}
    assert await directory.beat("a") is None


async def test_many_workers_join_and_beat_at_once(make_directory: MakeDirectory) -> None:
    directories = [make_directory() for _ in range(4)]
    await asyncio.gather(
        *(each.join(member(f"w{n}"), {"f/g": 2}) for n, each in enumerate(directories))
    )
    for _ in range(5):
        await asyncio.gather(*(each.beat(f"w{n}") for n, each in enumerate(directories)))
    view = await directories[0].view()
    assert {name: each.beat for name, each in view.members.items()} == dict.fromkeys(
        ("w0", "w1", "w2", "w3"), 5
    )


async def test_closing_a_directory_twice_is_allowed(make_directory: MakeDirectory) -> None:
    directory = make_directory()
    await directory.close()
    await directory.close()


async def test_a_member_that_drains_stays_until_it_leaves(make_directory: MakeDirectory) -> None:
    one, two = make_directory(), make_directory()
    await one.join(member("a"), {"shop/cart": 1})
    joined = await two.join(member("b"), {})
    placed = await two.place(joined.version, {"shop/cart/0": "a"})
    assert placed is not None

    drained = await two.drain("a")

    assert drained is not None
    assert drained.version > placed.version
    assert drained.placement == placed.placement
    assert drained.members["a"].draining
    assert not drained.members["b"].draining
    seen = await one.beat("a")
    assert seen is not None
    assert seen.members["a"].draining
    await one.leave("a")
    assert list((await two.view()).members) == ["b"]


async def test_nobody_is_drained_if_something_has_changed_since_it_was_looked_at(
    make_directory: MakeDirectory,
) -> None:
    directory = make_directory()
    await directory.join(member("a"), {})
    looked_at = await directory.join(member("b"), {})
    await directory.leave("b")

    assert await directory.drain("a", expected_version=looked_at.version) is None
    now = await directory.view()
    assert not now.members["a"].draining
    drained = await directory.drain("a", expected_version=now.version)
    assert drained is not None
    assert drained.members["a"].draining


async def test_nobody_can_drain_who_is_no_member(make_directory: MakeDirectory) -> None:
    directory = make_directory()
    joined = await directory.join(member("a"), {})

    assert await directory.drain("b") is None
    assert await directory.view() == joined


async def test_who_drains_and_joins_again_says_so_itself(make_directory: MakeDirectory) -> None:
    directory = make_directory()
    drains = msgspec.structs.replace(member("a"), draining=True)

    assert (await directory.join(drains, {})).members["a"].draining
    assert not (await directory.join(member("a"), {})).members["a"].draining


async def test_who_is_drained_stays_so_until_it_leaves(make_directory: MakeDirectory) -> None:
    one, two = make_directory(), make_directory()
    await one.join(member("a"), {"shop/cart": 1})
    await two.join(member("b"), {"shop/cart": 1})
    drained = await two.drain("a")
    assert drained is not None
    assert drained.leaving == {"a"}

    removed = await two.place(drained.version, {"shop/cart/0": "b"}, removed=["a"])
    assert removed is not None
    assert (list(removed.members), removed.leaving) == (["b"], {"a"})
    again = await one.join(member("a"), {"shop/cart": 1})
    assert again.members["a"].draining
    assert again.members["a"].functions == {"shop/cart"}
    assert not again.members["b"].draining
    assert (await one.join(member("a"), {})).members["a"].draining
    assert (await make_directory().view()).leaving == {"a"}

    await one.leave("a")
    left = await two.view()
    assert (list(left.members), left.leaving) == (["b"], frozenset())
    assert not (await one.join(member("a"), {})).members["a"].draining


async def test_who_was_removed_can_still_leave(make_directory: MakeDirectory) -> None:
    one, two = make_directory(), make_directory()
    await one.join(member("a"), {})
    await two.drain("a")
    removed = await two.place((await two.view()).version, {}, removed=["a"])
    assert removed is not None

    await one.leave("a")

    view = await two.view()
    assert view.leaving == frozenset()
    assert view.version > removed.version


async def test_of_workers_that_are_to_leave_the_last_are_known(
    make_directory: MakeDirectory,
) -> None:
    directory = make_directory()
    names = [f"w{number:03}" for number in range(LEAVING_MAX + 2)]
    for name in names:
        await directory.join(member(name), {})
        await directory.drain(name)
    await directory.drain(names[2])
    await directory.drain(names[0])

    view = await directory.view()
    assert view.leaving == {names[0], names[2], *names[4:]}
    assert all(each.draining for each in view.members.values())


async def test_a_member_says_how_it_was_launched_and_what_it_costs(
    make_directory: MakeDirectory,
) -> None:
    launched = msgspec.structs.replace(
        member("a"), launch="7-1", node="pod-1", cores=4, price_hour=0.25
    )
    await make_directory().join(launched, {})

    seen = (await make_directory().view()).members["a"]
    assert (seen.launch, seen.cores, seen.price_hour) == ("7-1", 4, 0.25)


async def test_nobody_leads_and_nothing_is_planned_at_first(make_directory: MakeDirectory) -> None:
    directory = make_directory()
    view = await directory.join(member("a"), {})

    assert (view.lead, view.plan_version) == (Lead(), 0)
    assert await directory.plan() == StoredPlan()


async def test_one_of_those_that_want_to_lead_does(make_directory: MakeDirectory) -> None:
    one, two = make_directory(), make_directory()
    await one.join(member("a"), {})
    before = await two.join(member("b"), {})

    results = await asyncio.gather(one.lead("a", 0), two.lead("b", 0))

    ((holder, view),) = [pair for pair in zip("ab", results, strict=True) if pair[1] is not None]
    assert view is not None
    assert view.lead.holder == holder
    assert view.lead.token > 0
    # Clients hear of new versions only.
    assert view.version == before.version
    assert await one.view() == await two.view() == view
    beaten = await two.beat("b")
    assert beaten is not None
    assert beaten.lead == view.lead


async def test_the_token_grows_with_each_holder(make_directory: MakeDirectory) -> None:
    directory = make_directory()
    await directory.join(member("a"), {})
    await directory.join(member("b"), {})
    tokens = [0]
    for holder in ("a", "b", "b", "a"):
        view = await directory.lead(holder, tokens[-1])
        assert view is not None
        assert view.lead.holder == holder
        assert view.lead.token > tokens[-1]
        tokens.append(view.lead.token)
    assert await directory.lead("b", tokens[-2]) is None
    # Others may know a token that the directory has lost.
    known = tokens[-1] + 10**12
    view = await directory.lead("a", tokens[-1], above=known)
    assert view is not None
    assert view.lead.token == known + 1


async def test_only_a_member_can_lead(make_directory: MakeDirectory) -> None:
    directory = make_directory()
    await directory.join(member("a"), {})
    assert await directory.lead("b", 0) is None
    led = await directory.lead("a", 0)
    assert led is not None
    await directory.leave("a")
    assert await directory.lead("a", led.lead.token) is None
    assert (await directory.view()).lead == led.lead


async def test_who_leads_replaces_the_plan(make_directory: MakeDirectory) -> None:
    one, two = make_directory(), make_directory()
    await one.join(member("a"), {"shop/cart": 1})
    led = await one.lead("a", 0)
    assert led is not None
    token = led.lead.token

    first = await one.replan(token, 1, b"one\x00\xff")
    assert first is not None
    assert await two.plan() == StoredPlan(first, token, 1, b"one\x00\xff")
    second = await one.replan(token, 2, b"")
    assert second is not None
    assert second > first
    assert await two.plan() == StoredPlan(second, token, 2, b"")
    view = await two.view()
    assert (view.plan_version, view.version) == (second, led.version)


async def test_a_plan_of_an_old_token_is_refused(make_directory: MakeDirectory) -> None:
    one, two = make_directory(), make_directory()
    await one.join(member("a"), {})
    await two.join(member("b"), {})
    assert await one.replan(0, 1, b"nobody leads") is None
    led = await one.lead("a", 0)
    assert led is not None
    former = led.lead.token
    assert await one.replan(former, 5, b"kept") is not None
    now = await two.lead("b", former)
    assert now is not None

    assert await one.replan(former, 6, b"too late") is None
    assert await one.replan(now.lead.token + 1, 1, b"of nobody") is None
    assert (await two.plan()).data == b"kept"
    assert await two.replan(now.lead.token, 1, b"new") is not None
    assert (await one.plan()).data == b"new"


async def test_a_plan_that_comes_late_does_not_replace_a_later_one(
    make_directory: MakeDirectory,
) -> None:
    directory = make_directory()
    await directory.join(member("a"), {})
    led = await directory.lead("a", 0)
    assert led is not None
    token = led.lead.token
    assert await directory.replan(token, 2, b"later") is not None

    assert await directory.replan(token, 1, b"earlier") is None
    assert await directory.replan(token, 2, b"again") is None
    assert (await directory.plan()).data == b"later"


async def test_a_former_controller_drains_nobody(make_directory: MakeDirectory) -> None:
    one, two = make_directory(), make_directory()
    await one.join(member("a"), {})
    await two.join(member("b"), {})
    assert await one.drain("b", token=1) is None
    led = await one.lead("a", 0)
    assert led is not None
    now = await two.lead("b", led.lead.token)
    assert now is not None

    assert await one.drain("b", token=led.lead.token) is None
    assert not (await two.view()).members["b"].draining
    drained = await two.drain("a", token=now.lead.token)
    assert drained is not None
    assert drained.members["a"].draining


async def test_a_plan_has_a_bound(make_directory: MakeDirectory) -> None:
    directory = make_directory()
    await directory.join(member("a"), {})
    led = await directory.lead("a", 0)
    assert led is not None
    largest = bytes(PLAN_BYTES_MAX)
    assert await directory.replan(led.lead.token, 1, largest) is not None
    with pytest.raises(ValueError, match="allowed: 65536"):
        await directory.replan(led.lead.token, 2, largest + b"x")
    assert (await directory.plan()).data == largest


def test_the_controller_and_the_directory_have_the_same_bound_for_plans() -> None:
    assert WRITTEN_BYTES_MAX == PLAN_BYTES_MAX


async def test_the_first_key_that_is_proposed_is_the_clusters(
    make_directory: MakeDirectory,
) -> None:
    one, two = make_directory(), make_directory()
    first, second = b"\x00\xff" * 16, b"two" * 8
    assert await one.cluster_key(first) == first
    assert await two.cluster_key(second) == first
    assert await one.cluster_key(second) == first
