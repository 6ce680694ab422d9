"""Code that changes while its states stay: what is stored is upgraded, or refused with a reason."""

from __future__ import annotations

import asyncio
import json
import random
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from sublet import Client, StateTypeError, UnknownFunctionError
from sublet.functions.state_versions import is_marked
from sublet.runtime.cli.exit_codes import ExitCode
from sublet.statestore.open import open_store
from tests.integration.cluster import PROJECT, Cluster, WorkerProcess, running_cluster, until
from tests.integration.leaving import by_command, http_address, settings_for

KEYS = [f"key{number}" for number in range(40)]
HEAD = """
from dataclasses import dataclass, field
from sublet import App, Context, Map, NO_RETRY

app = App("shop", partitions=4)
"""
FIRST = """
@app.function(state=int, retry=NO_RETRY)
def cart(ctx: Context, amount: int) -> int:
    ctx.state.set(ctx.state.get() + amount)
    return ctx.state.get()
"""
SECOND = """
@dataclass
class Cart:
    total: int = 0
    amounts: list[int] = field(default_factory=list)

@app.function(retry=NO_RETRY)
def cart(ctx: Context[Cart], amount: int) -> int:
    cart = ctx.state.get()
    cart.total += amount
    cart.amounts = [*cart.amounts, amount][-3:]
    ctx.state.set(cart)
    return cart.total

@cart.upgrade(from_version=1)
def with_amounts(old: int) -> Cart:
    return Cart(total=old)
"""
BACK = """
@dataclass
class Cart:
    total: int

@app.function(state=int, retry=NO_RETRY)
def cart(ctx: Context, amount: int) -> int:
    ctx.state.set(ctx.state.get() + amount)
    return ctx.state.get()

@cart.upgrade(from_version=1)
def as_it_was(old: int) -> Cart:
    return Cart(total=old)

@cart.upgrade(from_version=2)
def total_alone(old: Cart) -> int:
    return old.total
"""
RENAMED_FIELD = SECOND.replace("total", "sum")
BROKEN = """
@app.function(state=str)
def cart(ctx: Context, amount: str) -> None: ...

@cart.upgrade(from_version=1)
def to_text(old: int) -> str:
    if old > 20:
        raise ValueError(f"{old} is too much")
    return str(old)
"""
OTHERS_OF_CART = """
@app.function(state=int)
def ledger(ctx: Context, amount: int) -> int:
    ctx.state.set(ctx.state.get() + amount)
    return ctx.state.get()
"""
BEFORE_RENAME = (
    OTHERS_OF_CART
    + """
@app.function(state=int, retry=NO_RETRY)
def cart(ctx: Context, amount: int) -> int:
    if amount == 13:
        raise ValueError("unlucky")
    if amount == 1000:
        ctx.send_after("3s", cart, ctx.key, 7)
    ctx.state.set(ctx.state.get() + amount)
    ctx.send(ledger, "all", amount)
    return ctx.state.get()

@app.function
async def ask(ctx: Context, amount: int) -> int:
    return await ctx.call(cart, ctx.key, amount)
"""
)
AFTER_RENAME = (
    OTHERS_OF_CART
    + """
@app.function(state=int, retry=NO_RETRY, aliases=["cart"])
def basket(ctx: Context, amount: int) -> int:
    ctx.state.set(ctx.state.get() + amount)
    ctx.send(ledger, "all", amount)
    return ctx.state.get()

@app.function
async def ask(ctx: Context, amount: int) -> int:
    return await ctx.call(basket, ctx.key, amount)
"""
)
OTHER = """
@app.function(state=int)
def other(ctx: Context) -> None: ...
"""


def app(folder: Path, *parts: str) -> str:
    """Write an app; return its target."""
    folder.mkdir()
    (folder / "shop.py").write_text(HEAD + "".join(parts))
    return f"{folder}/shop.py:app"


@asynccontextmanager
async def cluster_of(
    tmp_path: Path, target: str, workers: int = 1, store: str = "sqlite"
) -> AsyncIterator[Cluster]:
    with settings_for(store, tmp_path / "redis") as settings:
        async with running_cluster(
            tmp_path / "data",
            workers,
            app=target,
            log_level="info",
            member_term_ms=10_000,  # Nobody dies here; who is slow must not be taken for dead.
            **settings,
        ) as cluster:
            cluster.url = str(settings.get("redis_url", ""))  # type: ignore[attr-defined]
            yield cluster


def place_of(cluster: Cluster) -> str:
    """Return what `--against` takes."""
    return getattr(cluster, "url", "") or str(cluster.data_dir)


async def sublet(*words: str) -> tuple[int, str]:
    command = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sublet", *words), cwd=PROJECT, stdout=PIPE
    )
    told, _ = await command.communicate()
    assert command.returncode is not None
    return command.returncode, told.decode()


async def checked(target: str, cluster: Cluster, *words: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code of `sublet check`, and what it says of each function."""
    code, told = await sublet("check", target, "--against", place_of(cluster), "--json", *words)
    report = json.loads(told)
    assert report["ok"] is (code == ExitCode.DONE)
    return code, {each["name"]: each for each in report["functions"]}


async def stop(*workers: WorkerProcess) -> None:
    for worker in workers:
        worker.terminate()
    for worker in workers:
        assert await worker.ended() == 0


async def drain(cluster: Cluster, worker: WorkerProcess) -> None:
    await by_command(cluster, worker)
    assert await worker.ended() == 0


async def versions_stored(cluster: Cluster) -> Counter[bool]:
    """Count the stored states by whether they are of a later version."""
    url = getattr(cluster, "url", "")
    database = cluster.data_dir / "sublet.db"
    store = open_store("redis" if url else "sqlite", database, url, full_sync=False)
    found: Counter[bool] = Counter()
    after: tuple[str, str] | None = None
    try:
        while page := await store.scan("shop/cart", after, 500):
            for _, rows in page:
                (marks,) = {is_marked(row.subkey) for row in rows}
                found[marks] += 1
            after = page[-1][0], page[-1][1][0].key
    finally:
        await store.close()
    return found


async def knows(client: Client, function: str) -> bool:
    """Tell whether the client has heard of a function."""
    try:
        await client.call(function, KEYS[0], 0)
    except UnknownFunctionError:
        return False
    return True


class Load:
    """Calls keys at random, and knows what each state has to be."""

    def __init__(self, client: Client, *functions: str) -> None:
        self.functions = functions or ("shop/cart",)
        self.totals: Counter[str] = Counter()
        self._client = client
        self._chance = random.Random(7)
        self._is_over = False

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for each in range(4):
                tasks.create_task(self._feed(KEYS[each::4]))

    async def _feed(self, keys: list[str]) -> None:
        while not self._is_over:
            key, amount = self._chance.choice(keys), self._chance.randrange(1, 5)
            self.totals[key] += amount
            name = self._chance.choice(self.functions)
            assert await self._client.call(name, key, amount) == self.totals[key]

    def stop(self) -> None:
        self._is_over = True

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.run())
            yield
            self.stop()

    async def goes_on(self) -> None:
        """Wait until calls have been made since."""
        before = self.totals.total()
        await until(lambda: self.totals.total() > before + 200)


@pytest.mark.parametrize("store", ["sqlite", "redis"])
async def test_two_versions_of_a_state_side_by_side_under_load_lose_and_double_nothing(
    tmp_path: Path, store: str
) -> None:
    old, new = app(tmp_path / "old", FIRST), app(tmp_path / "new", SECOND)
    async with cluster_of(tmp_path, old, 2, store) as cluster, cluster.client() as client:
        load = Load(client)
        async with load.running():
            await load.goes_on()
            code, found = await checked(new, cluster)
            assert code == ExitCode.DONE
            assert found["shop/cart"]["to_upgrade"] == found["shop/cart"]["states"] > 0

            first, second = cluster.workers
            third = cluster.add_worker(new, upgrade=1)
            await cluster.ready()

            async def has_all() -> bool:
                return len((await cluster.status(third)).partitions) == 4

            # Whoever has the older code could not read what the newer one writes.
            await until(has_all)
            await load.goes_on()
            cluster.add_worker(new)
            await drain(cluster, first)
            await load.goes_on()
            await drain(cluster, second)
            await cluster.ready()
            await load.goes_on()
        for key in KEYS:
            assert await client.call("shop/cart", key, 0) == load.totals[key]
        assert await versions_stored(cluster) == {True: len(load.totals)}
    assert "no longer declared" not in cluster.log


async def test_a_state_is_upgraded_when_it_is_changed_and_shown_so_before(tmp_path: Path) -> None:
    old, new = app(tmp_path / "old", FIRST), app(tmp_path / "new", SECOND)
    async with cluster_of(tmp_path, old) as cluster:
        async with cluster.client() as client:
            for key in ("ada", "bob"):
                assert await client.call("shop/cart", key, 5) == 5
        await stop(*cluster.workers)

        cluster.add_worker(new)
        await cluster.ready()
        address = cluster.living[0].address
        for words in (("state", "get", "cart", "ada"), ("state", "list", "cart")):
            _, told = await sublet(*words, "--connect", address)
            assert '{"total":5,"amounts":[]}' in told
        async with cluster.client() as client:
            async with client.snapshot("shop/cart") as snapshot:
                found = {each.key: each.state async for each in snapshot}
            assert found == {key: {"total": 5, "amounts": []} for key in ("ada", "bob")}
            assert await versions_stored(cluster) == {False: 2}
            assert await client.call("shop/cart", "ada", 1) == 6
        assert await versions_stored(cluster) == {False: 1, True: 1}


async def test_old_code_refuses_new_states_and_a_way_back_is_an_upgrade(tmp_path: Path) -> None:
    old, new = app(tmp_path / "old", FIRST), app(tmp_path / "new", SECOND)
    back = app(tmp_path / "back", BACK)
    async with cluster_of(tmp_path, old) as cluster:
        async with cluster.client() as client:
            for key in ("ada", "bob"):
                await client.call("shop/cart", key, 5)
        await stop(*cluster.workers)
        cluster.add_worker(new)
        await cluster.ready()
        async with cluster.client() as client:
            await client.call("shop/cart", "ada", 1)
        await stop(*cluster.living)

        code, found = await checked(old, cluster)
        assert code == ExitCode.FAILED
        (example,) = found["shop/cart"]["examples"]
        assert example["what"] == "state 'ada'"
        assert "has version 2, and this code has version 1" in example["reason"]
        cluster.add_worker(old)
        await cluster.ready()
        async with cluster.client() as client:
            with pytest.raises(StateTypeError, match="has version 2, and this code has version 1"):
                await client.call("shop/cart", "ada", 1)
            assert await client.call("shop/cart", "bob", 1) == 6
        await stop(*cluster.living)

        assert (await checked(back, cluster))[0] == ExitCode.DONE
        cluster.add_worker(back)
        await cluster.ready()
        async with cluster.client() as client:
            assert await client.call("shop/cart", "ada", 1) == 7
            assert await client.call("shop/cart", "bob", 1) == 7


async def test_check_says_what_would_break(tmp_path: Path) -> None:
    old, new = app(tmp_path / "old", FIRST), app(tmp_path / "new", SECOND, OTHER)
    async with cluster_of(tmp_path, old) as cluster:
        async with cluster.client() as client:
            for number, key in enumerate(KEYS):
                await client.call("shop/cart", key, number)

        code, found = await checked(app(tmp_path / "broken", BROKEN), cluster)
        assert code == ExitCode.FAILED
        cart = found["shop/cart"]
        assert (cart["states"], cart["broken"], cart["to_upgrade"]) == (40, 19, 21)
        assert len(cart["examples"]) == 5
        assert all("raised ValueError" in each["reason"] for each in cart["examples"])
        code, found = await checked(app(tmp_path / "few", BROKEN), cluster, "--sample", "8")
        assert found["shop/cart"]["states"] == 8

        removed = app(tmp_path / "removed", OTHER)
        code, found = await checked(removed, cluster)
        assert code == ExitCode.DONE
        assert not found["shop/cart"]["declared"]
        assert found["shop/cart"]["states"] == 40
        code, told = await sublet("check", removed, "--against", str(cluster.data_dir))
        assert 'declare aliases=["cart"]' in told

        await stop(*cluster.workers)
        cluster.add_worker(removed)
        await until(lambda: "a stored function is no longer declared" in cluster.log)
        await until(lambda: '"event": "ready"' in cluster.log.rpartition("no longer declared")[2])
        address = json.loads(
            next(line for line in cluster.log.splitlines()[::-1] if '"event": "ready"' in line)
        )["address"]
        for command in ("status", "functions"):
            _, told = await sublet(command, "--connect", address)
            assert "shop/cart is stored, but no longer declared" in told
            assert "`sublet state forget shop/cart`" in told
        folder = str(cluster.data_dir)
        code, told = await sublet("state", "forget", "other", "--data-dir", folder, "--json")
        assert (code, "shop/other is declared by" in told) == (ExitCode.USAGE, True)
        code, told = await sublet("state", "forget", "cart", "--data-dir", folder, "--json")
        assert code == ExitCode.USAGE
        question = "Forget shop/cart for good: 40 states, 0 waiting messages and 0 dead letters?"
        assert question in told
        code, told = await sublet("state", "forget", "cart", "--data-dir", folder, "--yes")
        assert (code, told) == (ExitCode.DONE, "forgotten\n")
        _, told = await sublet("status", "--connect", address)
        assert "no longer declared" not in told
        await stop(*cluster.living)

        cluster.add_worker(new)
        await cluster.ready()
        async with cluster.client() as client:
            await client.call("shop/cart", "key3", 1)
        code, found = await checked(
            app(tmp_path / "renamed", RENAMED_FIELD, OTHER), cluster, "--all"
        )
        assert found["shop/cart"]["ignored_fields"] == {"total": 1}


async def test_check_against_nothing_says_where_it_looked(tmp_path: Path) -> None:
    target = app(tmp_path / "app", FIRST)
    code, told = await sublet("check", target, "--against", str(tmp_path), "--json")
    assert code == ExitCode.NO_CLUSTER
    assert "there is no sublet.db in" in json.loads(told)["error"]["message"]
    code, told = await sublet("check", target)
    assert (code, told) == (ExitCode.DONE, "1 function can be loaded\n")
    assert not (tmp_path / "sublet.db").exists()


@pytest.mark.parametrize("store", ["sqlite", "redis"])
async def test_a_function_is_renamed_under_load_and_nothing_is_lost_or_doubled(
    tmp_path: Path, store: str
) -> None:
    old, new = app(tmp_path / "old", BEFORE_RENAME), app(tmp_path / "new", AFTER_RENAME)
    async with cluster_of(tmp_path, old, 2, store) as cluster, cluster.client() as client:
        once = {"idempotency_key": "payment-1"}
        assert await client.call("shop/cart", "ada", 5, **once) == 5
        await client.send("shop/cart", "bob", 13)
        load = Load(client, "shop/cart", "shop/ask")
        async with load.running():
            await load.goes_on()
            assert (await checked(new, cluster))[0] == ExitCode.DONE
            # The timer is set by old code, and rings when there is none any more.
            await client.call("shop/cart", "eve", 1000)
            cluster.add_worker(new, upgrade=1)
            await cluster.ready()
            # Everybody knows the new name now, also the workers of before, and soon the client.
            await until(partial(knows, client, "shop/basket"))
            load.functions = ("shop/cart", "shop/basket", "shop/ask")
            await load.goes_on()
            cluster.add_worker(new)
            for worker in cluster.workers[:2]:
                await drain(cluster, worker)
                await load.goes_on()
            await cluster.ready()
            await load.goes_on()
        for key in KEYS:
            assert await client.call("shop/basket", key, 0) == load.totals[key]

        async def has_rung() -> bool:
            return bool(await client.call("shop/basket", "eve", 0) == 1007)

        await until(has_rung)
        # What the old name has promised, both names keep.
        for name in ("shop/cart", "shop/basket"):
            assert await client.call(name, "ada", 5, **once) == 5
        address = ("--connect", cluster.living[0].address)
        _, told = await sublet("dead", "list", "--json", *address)
        (letter,) = json.loads(told)["dead"]
        await sublet("dead", "replay", letter["id"], *address)

        async def is_replayed() -> bool:
            return bool(await client.call("shop/cart", "bob", 0) == 13)

        await until(is_replayed)
        sent = load.totals.total() + 5 + 13 + 1007

        async def has_all() -> bool:
            return bool(await client.call("shop/ledger", "all", 0) == sent)

        await until(has_all)
        for name in ("cart", "basket", "shop/basket"):
            assert await sublet("state", "get", name, "ada", *address) == (0, "5\n")
        for command in ("status", "functions"):
            assert "shop/cart (also shop/basket)" in (await sublet(command, *address))[1]
        assert "no longer declared" not in cluster.log


async def test_a_renamed_function_has_all_of_its_names_by_http(tmp_path: Path) -> None:
    old, new = app(tmp_path / "old", BEFORE_RENAME), app(tmp_path / "new", AFTER_RENAME)
    async with cluster_of(tmp_path, old) as cluster:
        async with cluster.client() as client:
            await client.call("shop/cart", "ada", 5)
        await stop(*cluster.workers)
        worker = cluster.add_worker(new, http_port=0)
        await cluster.ready()
        async with httpx.AsyncClient(
            timeout=60, base_url=f"http://{http_address(cluster, worker)}"
        ) as http:
            for name in ("cart", "basket"):
                reply = await http.post(f"/functions/shop/{name}/ada", json=1)
                assert reply.status_code == 200, reply.text
            assert reply.json() == 7
            paths = (await http.get("/openapi.json")).json()["paths"]
            assert "/functions/shop/basket/{key}" in paths
            assert "/functions/shop/cart/{key}" not in paths


async def test_in_an_empty_store_a_renamed_function_has_its_new_name(tmp_path: Path) -> None:
    old, new = app(tmp_path / "old", BEFORE_RENAME), app(tmp_path / "new", AFTER_RENAME)
    async with cluster_of(tmp_path, new) as cluster:
        async with cluster.client() as client:
            assert await client.call("shop/cart", "ada", 5) == 5
            assert await client.call("shop/basket", "ada", 5) == 10
            with pytest.raises(UnknownFunctionError):
                await client.call("shop/wagon", "ada", 5)
        worker = cluster.add_worker(old, upgrade=1)
        worker.is_wanted = False
        assert await worker.ended() == ExitCode.USAGE
        assert "knows shop/cart as another name of shop/basket" in cluster.log
        cluster.workers.remove(worker)
        await stop(*cluster.living)

        # Nobody is there who knows of the rename: it has a state of its own, and says so.
        cluster.add_worker(old)
        await until(lambda: "a stored function is no longer declared" in cluster.log)
        await stop(*cluster.living)
        worker = cluster.add_worker(new)
        worker.is_wanted = False
        assert await worker.ended() == ExitCode.USAGE
        assert "shop/basket and shop/cart are both stored" in cluster.log
        code, _ = await sublet("check", new, "--against", str(cluster.data_dir))
        assert code == ExitCode.USAGE
