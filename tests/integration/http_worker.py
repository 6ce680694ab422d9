"""A real worker that serves HTTP, in a process of its own."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.fork_server import ForkedProcess, start_worker

APPS = "tests.integration.http_app:apps"
PATIENCE_S = 60.0
LOOK_EVERY_S = 0.02
# Nobody takes over from it: on a busy machine it may be silent for longer than usual, and would
# answer 503 until it has joined again.
ALONE_TERM_MS = 30_000


@contextmanager
def http_worker(
    data_dir: Path, *, target: str = APPS, is_ready: bool = True, **settings: object
) -> Iterator[str]:
    """Run a worker and yield its URL; `queue_max=3` becomes `SUBLET_QUEUE_MAX=3`.

    With `is_ready=False` it is enough that the worker listens. At the end it has to stop by
    itself when it is asked to.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    log = data_dir / "worker.log"
    log.write_bytes(b"")
    settings = {
        "http_port": 0,
        "log_format": "json",
        "data_dir": data_dir,
        "member_term_ms": ALONE_TERM_MS,
        **settings,
    }
    environment = {f"SUBLET_{name.upper()}": str(value) for name, value in settings.items()}
    process = start_worker(target, {**os.environ, **environment}, log)
    try:
        event = "ready" if is_ready else "serving HTTP"
        yield f"http://{_address(process, log, event)}"
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
        # Handlers may fail, and their tracebacks are told; the worker itself must not.
        told = [each for each in log.read_text().splitlines() if "a handler failed" not in each]
        assert "Traceback" not in "\n".join(told)
    except BaseException as error:
        error.add_note(f"the worker wrote:\n{log.read_text()[-6_000:]}")
        raise
    finally:
        process.kill()
        process.wait(PATIENCE_S)


def _address(process: ForkedProcess, log: Path, event: str) -> str:
    until_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < until_s and process.poll() is None:
        for line in log.read_text().splitlines(keepends=True):
            # A line may still be on its way.
            if line.startswith("{") and line.endswith("\n"):
                told = json.loads(line)
                if told["event"] == event:
                    return str(told["http"])
        time.sleep(LOOK_EVERY_S)
    raise AssertionError(f"no {event!r} from the worker")
