"""Arguments that nobody meant: each command says what is wrong with them, and shows no stack."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from sublet.runtime.cli.main import cli

COMMANDS = (
    ("call",),
    ("send",),
    ("state", "get"),
    ("state", "list"),
    ("state", "put"),
    ("state", "delete", "--yes"),
    ("dead", "list"),
    ("dead", "show"),
    ("dead", "replay"),
    ("dead", "drop", "--yes"),
    ("timers",),
    ("status",),
    ("functions",),
    ("why",),
    ("slow",),
    ("tail",),
    ("config", "show"),
)
WORDS = (
    "site/count",
    "k",
    "{}",
    "[1,",
    "1e999",
    "--limit",
    "-1",
    "0",
    "999999999999999999999",
    "--deadline",
    "1y",
    "--json",
    "--set",
    "port=x",
    "=",
    "--config",
    "/nowhere",
    "",
    "\x00",
    "\udcff",
    "--from",
    "-",
    "--address",
    "nowhere:99999",
)
arguments = st.lists(
    st.sampled_from(WORDS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    max_size=4,
)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_any_arguments_are_taken_or_told_off(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    @given(arguments)
    def run(words: list[str]) -> None:
        result = runner.invoke(cli, [*command, *words], input="")

        assert result.exception is None or isinstance(result.exception, SystemExit)
        assert "Traceback" not in result.output

    run()
