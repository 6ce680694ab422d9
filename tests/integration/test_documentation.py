"""What the documentation shows is what happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "getting-started.md").read_text()
README = (ROOT / "README.md").read_text()
PATIENCE_S = 30.0
# So that `sublet` and `python` are those of this environment.
PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def file_shown(text: str, name: str) -> str:
    (found,) = [each for each in blocks(text, "python") if each.startswith(f"# {name}\n")]
    return found


def steps(console: str) -> list[tuple[str, str]]:
    """Return the commands of a console block, each with the output that is shown."""
    parts = re.split(r"^\$ ", console, flags=re.MULTILINE)[1:]
    return [(command, shown) for command, _, shown in (part.partition("\n") for part in parts)]


def typed(command: str, directory: Path) -> str:
    """Return what a shell prints on standard output."""
    return subprocess.run(
        command,
        shell=True,
        cwd=directory,
        env={**os.environ, "PATH": PATH, "SUBLET_DATA_DIR": str(directory / ".sublet")},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    ).stdout


@contextmanager
def running(app: str, directory: Path) -> Iterator[str]:
    """Run `sublet run` in a folder; yield the address of a worker."""
    process = subprocess.Popen(
        ["sublet", "run", app, "--workers", "2"],
        cwd=directory,
        env={**os.environ, "PATH": PATH},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        found = None
        while found is None:
            line = process.stdout.readline()
            assert line, "the run ended before it was ready"
            found = re.search(r"2 workers are ready: ([\d.:]+)", line)
        yield found[1]
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def test_the_first_steps_of_the_guide_work_as_shown(tmp_path: Path) -> None:
    (tmp_path / "visits.py").write_text(file_shown(GUIDE, "visits.py"))
    (tmp_path / "client.py").write_text(file_shown(GUIDE, "client.py"))

    with running("visits:app", tmp_path) as address:
        for console in blocks(GUIDE, "console")[:3]:
            for command, shown in steps(console):
                assert typed(command, tmp_path) == shown, command
        assert typed(f"python client.py {address}", tmp_path) == "1\n[1, 1, 2]\n"


def test_the_shop_of_the_guide_works_as_shown(tmp_path: Path) -> None:
    with running(str(ROOT / "examples" / "shop.py"), tmp_path):
        for command, shown in steps(blocks(GUIDE, "console")[3]):
            assert typed(command, tmp_path) == shown, command


def test_the_functions_of_the_readme_work(tmp_path: Path) -> None:
    (tmp_path / "visits.py").write_text(file_shown(README, "visits.py"))
    (client,) = [each for each in blocks(README, "python") if "Client(" in each]

    with running("visits:app", tmp_path) as address:
        (tmp_path / "client.py").write_text(client.replace("127.0.0.1:7337", address))
        assert typed("sublet call count ada 1", tmp_path) == "1\n"
        assert typed("python client.py", tmp_path) == "2\n"


@pytest.mark.parametrize("example", ["shop.py", "word_count.py"])
def test_the_guide_quotes_the_examples_as_they_are(example: str) -> None:
    def code(text: str) -> str:
        return re.sub(r'\n *"""[^"]*"""', "", text)

    source = code((ROOT / "examples" / example).read_text())
    functions = re.findall(r"def (\w+)\(", source)
    quoted = [
        each
        for each in blocks(GUIDE, "python")
        if each.startswith("@app") and re.findall(r"def (\w+)\(", each)[0] in functions
    ]

    assert quoted
    for each in quoted:
        assert each in source


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "ARCHITECTURE.md",
        *(path.relative_to(ROOT).as_posix() for path in ROOT.glob("docs/**/*.md")),
    ],
)
def test_every_link_leads_to_a_file(page: str) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", (ROOT / page).read_text())

    assert [each for each in links if not ((ROOT / page).parent / each).exists()] == []
