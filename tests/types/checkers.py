"""Runs mypy and pyright over folders of programs, as a user of Sublet would."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

Codes = dict[int, set[str]]
"""By line, the codes of the errors that a checker finds there."""


class Found(NamedTuple):
    """What a checker found."""

    codes: dict[Path, Codes]
    texts: dict[Path, list[str]]

    def told_about(self, path: Path) -> str:
        """Return all that the checker says about a file."""
        return "\n".join(self.texts.get(path, ()))


def mypy(paths: Sequence[Path], *, mypy_path: Path | None = None) -> Found:
    """Return what mypy finds, with `--strict`."""
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            f"--config-file={HERE / 'mypy.ini'}",
            f"--cache-dir={ROOT / 'build' / 'type_tests_cache'}",
            "--output=json",
            *map(str, paths),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=mypy_path or ROOT,
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    codes: dict[Path, Codes] = defaultdict(lambda: defaultdict(set))
    texts: dict[Path, list[str]] = defaultdict(list)
    for line in filter(None, run.stdout.splitlines()):
        told = json.loads(line)
        if told["severity"] == "error":
            file = Path(mypy_path or ROOT, told["file"]).resolve()
            codes[file][told["line"]].add(told["code"])
            texts[file].append(f"{told['line']}: {told['message']} [{told['code']}]")
    return Found(codes, texts)


def pyright(project: Path) -> Found:
    """Return what pyright finds in a folder with a pyrightconfig.json."""
    run = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", f"--pythonpath={sys.executable}"],
        capture_output=True,
        text=True,
        check=False,
        cwd=project,
    )
    assert run.returncode in (0, 1), run.stdout + run.stderr
    codes: dict[Path, Codes] = defaultdict(lambda: defaultdict(set))
    texts: dict[Path, list[str]] = defaultdict(list)
    for told in json.loads(run.stdout)["generalDiagnostics"]:
        file, line = Path(told["file"]).resolve(), told["range"]["start"]["line"] + 1
        codes[file][line].add(told.get("rule", "syntax"))
        texts[file].append(f"{line}: {told['message']} [{told.get('rule')}]")
    return Found(codes, texts)
