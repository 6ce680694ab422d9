"""pytest finds the fixture by itself, in a project that has never heard of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
from sublet import App, Context

app = App("greetings")


@app.function(state=int)
def greet(ctx: Context, name: str) -> str:
    if not name:
        raise ValueError("nobody to greet")
    ctx.state.set(ctx.state.get() + 1)
    return f"hello {name}"


def test_passes(sublet_harness):
    harness = sublet_harness(app, seed=3)
    assert harness.call(greet, "k", "ada") == "hello ada"
    assert harness.state(greet, "k") == 1


def test_two_harnesses_share_nothing(sublet_harness):
    one, other = sublet_harness(app), sublet_harness(app)
    one.send(greet, "k", "ada")
    assert one.state(greet, "k") == 1
    assert other.state(greet, "k") == 0


def test_shows_what_went_wrong(sublet_harness):
    sublet_harness(app).call(greet, "k", "")


def test_fails_at_its_end(sublet_harness):
    sublet_harness(app).send(greet, "k", "")
"""

# pytest-asyncio, where it is installed, wants options of its own.
OPTIONS = "-p no:cacheprovider -p no:asyncio -W error ."


def test_the_fixture_makes_harnesses_and_ends_them(tmp_path: Path) -> None:
    (tmp_path / "test_greetings.py").write_text(PROGRAM)

    run = subprocess.run(
        [sys.executable, "-m", "pytest", *OPTIONS.split()],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )

    assert run.returncode == 1, run.stdout
    assert "1 failed, 3 passed, 1 error" in run.stdout
    # The line that raised, and the error that a client would get.
    assert '>           raise ValueError("nobody to greet")' in run.stdout or (
        '>       raise ValueError("nobody to greet")' in run.stdout
    )
    assert "HandlerError: greetings/greet raised ValueError: nobody to greet" in run.stdout
    assert "A message to greetings/greet[k] still waits for attempt 2" in run.stdout
