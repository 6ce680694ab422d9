"""Rows of tables that go as Arrow from the client to the handler: every row counts once."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest

pa = pytest.importorskip("pyarrow", reason="the extra 'arrow' is not installed")

from sublet import Client, PayloadError, RejectedError  # noqa: E402
from sublet.functions.address import partition_index_of  # noqa: E402
from sublet.functions.codec import is_arrow  # noqa: E402
from sublet.functions.columns import encode_columns, normal_columns  # noqa: E402
from sublet.runtime.client.pipeline_protocol import Staged  # noqa: E402
from sublet.runtime.client.pipelines import Pipeline  # noqa: E402
from sublet.spark_bridge.sink.rows import RowSplitter, layout_of  # noqa: E402
from tests.integration.cluster import running_cluster  # noqa: E402

APP = "tests.integration.columns_app:app"
COLUMNS = "columns/columns"


def table_of(seed: int, count: int) -> Any:
    return pa.RecordBatch.from_pydict(
        {
            "user": [f"k{(seed + 7 * row) % 40}" for row in range(count)],
            "amount": pa.array([(seed + row) % 9 for row in range(count)], pa.int32()),
            "note": [None if row % 3 else f"note {row} é" for row in range(count)],
        }
    )


def sums(*tables: Any) -> Counter[str]:
    found: Counter[str] = Counter()
    for table in tables:
        for row in table.to_pylist():
            found[row["user"]] += row["amount"]
    return found


async def stage(
    client: Client, pipeline: Pipeline, function: str, batch: int, table: Any
) -> Staged:
    message = await client.message_schema(function)
    layout = layout_of(table.schema, key=["user"], message=message)
    assert layout.columns == (function == COLUMNS)
    attempt = pipeline.attempt(batch)
    for rows in RowSplitter(layout, pipeline.partition_count).split(table):
        assert is_arrow(rows.payloads) == layout.columns
        await attempt.add(rows.partition, rows.keys, rows.payloads)
    return await attempt.end()


async def totals(client: Client, function: str, keys: Counter[str]) -> Counter[str]:
    messages = [{"amount": 0}] * len(keys)
    found = await client.call_many(function, list(keys), messages)
    return Counter(dict(zip(keys, found, strict=True)))


@pytest.mark.parametrize("function", [COLUMNS, "columns/each"])
async def test_rows_count_once_in_the_form_that_the_handler_takes(
    tmp_path: Path, function: str
) -> None:
    async with running_cluster(tmp_path, app=APP) as cluster, cluster.client() as client:
        pipeline = client.pipeline(function, "query")
        tables = [table_of(seed, 30_000) for seed in range(2)]
        for batch, table in enumerate(tables):
            wasted = await stage(client, pipeline, function, batch, table_of(9, 100))
            staged = await stage(client, pipeline, function, batch, table)
            assert await pipeline.commit(batch, [staged]) == (30_000, True)
            assert wasted.row_count == 100
        await pipeline.wait_taken()
        wanted = sums(*tables)
        assert await totals(client, function, wanted) == wanted
        assert await client.call(COLUMNS, "other", {"amount": 3}) == 3
        with pytest.raises(PayloadError, match="amount"):
            await client.call(COLUMNS, "other", {"amount": "many"})


async def test_workers_that_die_while_columns_run_lose_nothing(tmp_path: Path) -> None:
    async with (
        running_cluster(tmp_path, app=APP, workers=3) as cluster,
        cluster.client(connect_timeout="1s") as client,
    ):
        pipeline = client.pipeline(COLUMNS, "query", timeout="40s")
        tables = [table_of(seed, 20_000) for seed in range(3)]
        for batch, table in enumerate(tables):
            staged = await stage(client, pipeline, COLUMNS, batch, table)
            if batch:
                cluster.living[0].kill()
            assert await pipeline.commit(batch, [staged]) == (20_000, True)
        await pipeline.wait_taken()
        wanted = sums(*tables)
        assert await totals(client, COLUMNS, wanted) == wanted


async def test_columns_are_cut_into_parts_that_fit_and_bad_ones_are_refused(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path, app=APP) as cluster, cluster.client() as client:
        pipeline = client.pipeline(COLUMNS, "query")
        index = partition_index_of("k", pipeline.partition_count)
        notes = ["x" * (200_000 if row == 7 else 20) for row in range(50_000)]
        table = pa.RecordBatch.from_pydict({"amount": [1] * 50_000, "note": notes})
        attempt = pipeline.attempt(0)
        column = encode_columns(normal_columns(table, bare=False))
        await attempt.add(index, ["k"] * 50_000, column)
        staged = await attempt.end()
        assert staged.parts[index][0] > 2
        await pipeline.commit(0, [staged])
        await pipeline.wait_taken()
        assert await client.call(COLUMNS, "k", {"amount": 0}) == 50_000

        for wrong, said in (
            (pa.RecordBatch.from_pydict({"amount": ["1"]}), "'amount' has the type string"),
            (pa.RecordBatch.from_pydict({"note": ["x"]}), "there is no column 'amount'"),
        ):
            refused = pipeline.attempt(1)
            await refused.add(index, ["k"], encode_columns(normal_columns(wrong, bare=False)))
            with pytest.raises(RejectedError, match=said):
                await refused.end()
        other = client.pipeline("columns/each", "query").attempt(0)
        await other.add(index, ["k"], encode_columns(normal_columns(table[:1], bare=False)))
        with pytest.raises(RejectedError, match="no columns of Arrow"):
            await other.end()
        huge = pipeline.attempt(1)
        large = pa.RecordBatch.from_pydict({"amount": [1, 1], "note": ["x" * 5_000_000, ""]})
        with pytest.raises(RejectedError, match="the row of key 'k' has"):
            await huge.add(index, ["k"] * 2, encode_columns(normal_columns(large, bare=False)))


def test_a_schema_says_that_columns_are_taken() -> None:
    from sublet.runtime.services.inspection import _message_schema
    from tests.integration.columns_app import columns, each

    assert msgspec.json.decode(_message_schema(columns))["x-columns"] is True
    assert "x-columns" not in msgspec.json.decode(_message_schema(each))


WITHOUT_ARROW = """
import sys

sys.modules["pyarrow"] = None
from sublet import App, Batch, PayloadError
from sublet.functions.codec import check_column, split_column

app = App("app")
plain = app.function(name="plain", batch=True)(lambda batch: None)
try:
    app.function(name="tables", batch="columns")(lambda batch: None)
except TypeError as error:
    print(error)
for ask in check_column, split_column:
    try:
        ask(bytes.fromhex("c9000000064100000000010000"))
    except PayloadError as error:
        print(error)
"""


def test_who_has_no_pyarrow_is_told_so_and_needs_none_for_the_rest() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_ARROW], capture_output=True, text=True, check=True
    )

    declared, checked, split = ran.stdout.splitlines()
    assert "app/tables: batch='columns' needs pyarrow" in declared
    assert "install sublet[arrow]" in declared
    assert "columns of Arrow need pyarrow" in checked
    assert checked == split
