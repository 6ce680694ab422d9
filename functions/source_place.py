"""Where code stands, as people look for it: `shop/orders.py:13`."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from typing import Any


def place_text(path: str, line: int) -> str:
    """Return a line of a file, by its path as an import would have it: whoever reads of an error
    need not know where the app is installed."""
    roots = [each.rstrip(os.sep) + os.sep for each in sys.path if each]
    root = max([each for each in roots if path.startswith(each)], key=len, default="")
    return f"{path[len(root) :] if root else os.path.basename(path)}:{line}"


def declared_at(handler: Callable[..., Any]) -> str:
    """Return where a handler begins; nothing if it is no function of Python."""
    code = getattr(inspect.unwrap(handler), "__code__", None)
    return "" if code is None else place_text(code.co_filename, code.co_firstlineno)
