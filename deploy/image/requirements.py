"""Print what Sublet needs to run, with some of its extras, as lines for `pip install -r`.

    python3 requirements.py pyproject.toml redis,otel

The image installs these in a layer of their own, which stays the same as long as they do.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def requirements(project: Path, extras: str) -> list[str]:
    """Return the dependencies of a project and of its extras, whose names have commas between."""
    told = tomllib.loads(project.read_text())["project"]
    optional: dict[str, list[str]] = told.get("optional-dependencies", {})
    chosen = [each.strip() for each in extras.split(",") if each.strip()]
    if unknown := [each for each in chosen if each not in optional]:
        raise SystemExit(f"EXTRAS has {', '.join(unknown)}; allowed: {', '.join(sorted(optional))}")
    return [*told["dependencies"], *(line for each in chosen for line in optional[each])]


if __name__ == "__main__":
    sys.stdout.write("\n".join(requirements(Path(sys.argv[1]), sys.argv[2])) + "\n")
