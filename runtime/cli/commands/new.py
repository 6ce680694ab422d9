"""`sublet new`: a project that works, with a test."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from shlex import quote

import typer

from sublet.runtime.cli.exit_codes import UsageError, exit_with
from sublet.runtime.cli.ports import HTTP_PORT

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,49}")
_TAKEN = ("sublet", "tests", "test")

_FILES = {
    "pyproject.toml": """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "{name}"
version = "0.1.0"
requires-python = ">=3.11"
dependencies = ["sublet"]

[project.optional-dependencies]
dev = ["pytest>=8"]

[tool.setuptools]
packages = ["{module}"]

[tool.pytest.ini_options]
testpaths = ["tests"]
pythonpath = ["."]
""",
    "sublet.toml": """\
# The settings of this project; `sublet config show` lists all of them.
app = "{module}.app:app"
data_dir = ".sublet"
""",
    ".gitignore": """\
.sublet/
.venv/
__pycache__/
*.egg-info/
""",
    "README.md": """\
# {name}

    pip install -e '.[dev]'
    pytest
    sublet dev

Then, in another terminal:

    sublet call visit ada '{{"page": "home"}}'
    sublet state list visit

Or open the address that `sublet dev` prints, http://127.0.0.1:8080/, in a browser.
""",
    "{module}/__init__.py": '''\
"""{name}."""
''',
    "{module}/app.py": '''\
"""The functions of {name}."""

from dataclasses import dataclass, field

from sublet import App, Context, Count

app = App("{app}")


@dataclass
class Visit:
    page: str


@dataclass
class Visitor:
    """What is known of one visitor: the state of one key."""

    pages: list[str] = field(default_factory=list)


@app.function(state=Visitor, slo="100ms")
def visit(ctx: Context, message: Visit) -> int:
    """Remember a page of the visitor `ctx.key`; return how many different ones there are."""
    visitor = ctx.state.get()
    if message.page not in visitor.pages:
        visitor.pages.append(message.page)
        ctx.state.set(visitor)
    ctx.send(views, key=message.page)
    return len(visitor.pages)


@app.function(state=Count())
def views(ctx: Context) -> int:
    """Count the views of the page `ctx.key`."""
    ctx.state.increment()
    return ctx.state.value
''',
    "tests/test_app.py": """\
from sublet.testing import Harness

from {module}.app import Visit, app, visit, views


def test_a_page_counts_once_for_a_visitor_and_each_time_for_the_page() -> None:
    with Harness(app) as harness:
        assert harness.call(visit, "ada", Visit("home")) == 1
        assert harness.call(visit, "ada", Visit("home")) == 1
        assert harness.call(visit, "ada", Visit("shop")) == 2

        assert harness.state(views, "home") == 2
""",
}


def new(folder: Path) -> None:
    """Write the files, and say what to type next."""
    try:
        files = project_files(folder.name)
        _write(folder, files)
    except UsageError as error:
        exit_with(error)
    except OSError as error:
        exit_with(UsageError(f"cannot create {folder}: {error.strerror}; choose another place"))
    typer.echo(f"made {folder} with {len(files)} files; next:")
    typer.echo("\n".join(_next_steps(folder)))


def _next_steps(folder: Path) -> Iterator[str]:
    """Yield what can be typed as it stands, line by line."""
    yield f"  cd {quote(str(folder))}"
    if find_spec("pytest") is None:
        yield f"  {quote(sys.executable)} -m pip install pytest"
    yield "  pytest        # runs its test"
    yield "  sublet dev    # runs it, and restarts it after each change"
    yield "then, in another terminal:"
    yield f"  cd {quote(str(folder))}"
    yield """  sublet call visit ada '{"page": "home"}'"""
    yield f"or in a browser, at the address that `sublet dev` prints: http://127.0.0.1:{HTTP_PORT}/"


def project_files(name: str) -> dict[str, str]:
    """Return the content of every file of a new project, by path; refuse an impossible name."""
    module = name.lower().replace("-", "_")
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"the name is {name!r}; allowed: a letter, then letters, digits, _ or -, 50 at most"
        )
    if module in (*_TAKEN, *sys.stdlib_module_names) or keyword.iskeyword(module):
        raise UsageError(f"{module} is already a module of Python or Sublet; choose another name")
    values = {"name": name, "module": module, "app": name}
    return {path.format(**values): text.format(**values) for path, text in _FILES.items()}


def _write(folder: Path, files: dict[str, str]) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not an empty folder; choose another name")
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
