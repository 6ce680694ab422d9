"""What the fields of the settings say of themselves: the text under each, read from the source.

Python forgets the text that stands under a field, so this looks at the file again. One text
serves the help of the command line, the reference page, and whoever reads the code.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Mapping
from functools import cache
from types import ModuleType

from sublet.runtime.config import limits, settings


@cache
def documentation() -> Mapping[str, str]:
    """Return each setting's text in one line; empty for all where the source is not installed."""
    return {**_field_texts(settings, "WorkerConfig"), **_field_texts(limits, "Limits")}


def _field_texts(module: ModuleType, class_name: str) -> dict[str, str]:
    try:
        source = inspect.getsource(module)
    except OSError:
        return {}
    (found,) = (
        each
        for each in ast.parse(source).body
        if isinstance(each, ast.ClassDef) and each.name == class_name
    )
    texts: dict[str, str] = {}
    name = ""
    for statement in found.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=field)):
                name = field
            case ast.Expr(value=ast.Constant(value=str(text))) if name:
                texts[name] = " ".join(text.split())
                name = ""
            case _:
                name = ""
    return texts
