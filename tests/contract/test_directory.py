"""What every directory promises, whatever it is made of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import msgspec
import pytest

from sublet.statestore.contract import LEAVING_MAX, Directory, JoinRefusedError, Member

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
    await one.join(with_code("a", "1"), {"shop/cart": 1})
    await one.drain("a")

    for directory in (one, two):
        found = (await directory.view()).members["a"]
        assert (found.store, found.machine, found.versions) == ("sqlite", "here", {"shop": "1"})


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
