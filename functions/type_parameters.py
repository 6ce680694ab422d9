"""The type parameters that functions, contexts and clients share.

They have defaults, so that `Context`, `Function` and `Batch[int]` alone stay what they were: of
anything.
"""

from __future__ import annotations

from typing import Any

from typing_extensions import ParamSpec, TypeVar

M = TypeVar("M")
"""What a function takes."""
R = TypeVar("R")
"""What it replies."""
S = TypeVar("S")
"""What stands in `Context[…]`."""
P = ParamSpec("P")
"""What a handler takes after the context: a message, or nothing."""

P_any = ParamSpec("P_any", default=...)
R_co = TypeVar("R_co", covariant=True, default=Any)
S_co = TypeVar("S_co", covariant=True, default=Any)
