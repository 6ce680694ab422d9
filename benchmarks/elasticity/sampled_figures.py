"""Where a worker of `sampled_app` writes what its sampling has taken."""

from __future__ import annotations

import signal
from pathlib import Path

# SIGUSR2 is the runtime's own.
OFF, ON = signal.SIGUSR1, signal.SIGRTMIN + 1
"""Turn sampling off, and on."""
FOLDER = "SAMPLED_FIGURES"
"""The variable that names the folder of the file."""


def figures_path(folder: str, pid: int) -> Path:
    return Path(folder) / f"{pid}.json"
