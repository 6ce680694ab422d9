"""`python -m docs.generators docs` writes all that is made from the code into a folder.

A test makes it again and compares, so that it is never older than what it describes.
"""

from __future__ import annotations

import sys
from pathlib import Path

from docs.generators.pages import PAGES, PARTS, with_part


def main(arguments: list[str]) -> int:
    """Write every page below the folder that is given."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python -m docs.generators FOLDER\n")
        return 2
    for name, make in PAGES.items():
        path = Path(arguments[0], name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(make())
    for name, make in PARTS.items():
        path = Path(arguments[0], name)
        path.write_text(with_part(path.read_text(), make()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
