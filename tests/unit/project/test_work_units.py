"""What several processes share of the tests is what they may share."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.work_units import (
    BY_STORE,
    LONGEST,
    SHARE_NOTHING,
    SPARK_SESSION,
    WITH_SPARK_OF_THEIR_OWN,
    longest_first,
    unit_of,
)

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    "name", sorted({*BY_STORE, *LONGEST, *SHARE_NOTHING, *WITH_SPARK_OF_THEIR_OWN})
)
def test_every_name_is_that_of_a_file_or_folder(name: str) -> None:
    assert (ROOT / name).exists()


@pytest.mark.parametrize("name", SHARE_NOTHING)
def test_tests_that_share_nothing_have_no_fixture_for_all_of_them(name: str) -> None:
    text = (ROOT / name).read_text()
    asked_for = {
        given.arg
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:5] == "test_"
        for given in node.args.args
    }

    assert "scope=" not in text
    # Those of tests/integration/conftest.py.
    assert asked_for.isdisjoint({"cluster", "one_worker", "client"})


@pytest.mark.parametrize(
    ("nodeid", "unit"),
    [
        ("tests/integration/test_http.py::test_a[x]", "tests/integration/test_http.py"),
        (
            "tests/integration/test_docs_pages.py::test_a[cli.md]",
            "tests/integration/test_docs_pages.py::test_a[cli.md]",
        ),
        ("tests/spark/test_sink.py::test_a", SPARK_SESSION),
        ("tests/spark/test_connect.py::test_a", "tests/spark/test_connect.py"),
        (
            "tests/integration/test_promise_matrix.py::test_a[redis_cluster-keyed]",
            "tests/integration/test_promise_matrix.py[redis_cluster]",
        ),
        (
            "tests/integration/test_promise_matrix.py::test_a[def]",
            "tests/integration/test_promise_matrix.py",
        ),
    ],
)
def test_what_shares_workers_is_one_unit(nodeid: str, unit: str) -> None:
    assert unit_of(nodeid) == unit


def test_the_longest_begin_first_and_the_others_keep_their_order() -> None:
    nodeids = [
        "tests/integration/test_http.py::test_a",
        "tests/integration/test_bad_input.py::test_b",
        "tests/integration/test_docs_pages.py::test_c[cli.md]",
        "tests/spark/test_sink.py::test_d",
    ]

    assert longest_first(nodeids) == [3, 2, 0, 1]
