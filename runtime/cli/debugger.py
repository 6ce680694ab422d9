"""`breakpoint()` in a worker of `sublet dev`: pdb in the terminal of `dev`.

The worker has a session of its own and its output is handed on line by line, so neither its
standard input nor its standard output is a terminal. It opens that of `dev` by name.
"""

from __future__ import annotations

import os
import pdb
import sys
from collections.abc import Mapping
from typing import IO

TERMINAL_VARIABLE = "_SUBLET_TERMINAL"
"""Not a setting: `dev` tells it to its worker alone."""
_HOOK = "sublet.runtime.cli.debugger.set_trace"


def variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a worker is told; nothing without a terminal, or if the user has a hook."""
    if "PYTHONBREAKPOINT" in environment or not sys.stdin.isatty():
        return {}
    return {"PYTHONBREAKPOINT": _HOOK, TERMINAL_VARIABLE: os.ttyname(sys.stdin.fileno())}


def set_trace() -> None:
    """Debug the caller. Everything else on its thread waits, which is the loop's for most."""
    # Left open: pdb goes on with them after this has returned.
    reading, writing = _terminal("r"), _terminal("w")
    pdb.Pdb(stdin=reading, stdout=writing).set_trace(sys._getframe(1))


def _terminal(mode: str) -> IO[str]:
    def opened(path: str, flags: int) -> int:
        # It stays the terminal of `dev`, whose Ctrl-C is not for the worker.
        return os.open(path, flags | os.O_NOCTTY)

    return open(os.environ[TERMINAL_VARIABLE], mode, opener=opened)
