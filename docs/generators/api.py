"""The page of the Python interface: public names with their signatures and docstrings."""

from __future__ import annotations

import ast
import inspect
import re
import typing
from collections.abc import Callable, Iterator
from enum import Enum
from importlib import import_module
from itertools import chain, pairwise
from textwrap import dedent
from typing import Any

import sublet
import sublet.binding
import sublet.simulation
import sublet.testing
from sublet.functions.context import BatchState
from sublet.functions.state.cell import Cell

_LINE_MAX = 88
_MODULE = re.compile(r"sublet(\.\w+)+\.")
_HEAD = """# Reference: Python

<!-- Made by `make reference` from the docstrings of the code. -->

Everything here is imported from `sublet`, and the last parts from `sublet.binding`,
`sublet.testing`, `sublet.spark_bridge` and `sublet.simulation`. Lengths of time are texts
(`"50ms"`, `"1.5s"`, `"2m"`, `"1h"`, `"7d"`), `timedelta`s, or numbers of milliseconds. Errors are
on [a page of their own](errors.md).
"""

_DECLARING = ("App", "Function", "WindowedFunction", "Retry", "NO_RETRY")
_WINDOWS = ("TumblingWindow", "SlidingWindow", "SessionWindow", "Window")
_HANDLING = ("Context", "Batch")
_CALLING = ("Client", "BlockingClient", "CallInfo")
_EGRESS = (
    "EgressReader",
    "EgressRecord",
    "EgressRange",
    "EgressValues",
    "EgressCursor",
    "EgressGap",
    "BlockingEgressReader",
    "BlockingEgressRange",
)
_PIPELINES = (
    "Pipeline",
    "Attempt",
    "Staged",
    "Committed",
    "PipelineProgress",
    "BlockingPipeline",
    "BlockingAttempt",
)
_SNAPSHOTS = (
    "StateSnapshot",
    "KeyState",
    "SnapshotStates",
    "SnapshotPin",
    "BlockingStateSnapshot",
)
_STATES = (
    "Value",
    "Map",
    "List",
    "State",
    "Fields",
    "Sum",
    "Count",
    "Min",
    "Max",
    "Mean",
    "SetUnion",
    "TopK",
    "Quantiles",
    "Merged",
)
_OPERATORS = {
    "__contains__": ("x in ctx.state", "Tell whether it is there."),
    "__len__": ("len(ctx.state)", "How many there are."),
    "__iter__": ("for x in ctx.state", "All of them."),
    "__getitem__": ("ctx.state[x]", "One of them."),
}
# Public within Sublet: how states are stored, merged and moved.
_OF_THE_RUNTIME = {
    "add_to_bin",
    "bins",
    "encoded",
    "event_time_of",
    "forget",
    "partial",
    "replace",
    "total_and_count",
    "windows_of",
}

_NOT_FOR_USERS = {"Peer.forget"}


def api_page() -> str:
    """Return the page, as Markdown."""
    lines = [_HEAD]
    for title, names in (
        ("Declaring functions", _DECLARING),
        ("Windows", _WINDOWS),
        ("In a handler", _HANDLING),
        ("Calling from outside", _CALLING),
        ("Reading an egress", _EGRESS),
        ("Rows in batches", _PIPELINES),
        ("Reading states", _SNAPSHOTS),
    ):
        lines.append(f"## {title}\n")
        for name in names:
            lines += _described(name, getattr(sublet, name))
            if name == "Batch":
                lines += _described("Batch.state", BatchState, with_constructor=False)
    lines.append("## Kinds of state\n")
    lines.append("What `state=` takes, and what `ctx.state` is then.\n")
    for name in _STATES:
        lines += _state(name)
    lines.append("## sublet.binding\n")
    lines.append("[Lend work](../how-to/lending.md) shows a policy of one's own.\n")
    for name in sublet.binding.__all__:
        lines += _described(name, getattr(sublet.binding, name))
    lines.append("## sublet.testing\n")
    lines.append("[Testing functions](../testing.md) explains it, with examples.\n")
    for name in sublet.testing.__all__:
        lines += _described(name, getattr(sublet.testing, name))
    lines.append("## sublet.spark_bridge\n")
    lines.append("[Sublet for Spark users](../spark/index.md) explains it, with examples.\n")
    # By its name: it is a layer above this one.
    spark_bridge = import_module("sublet.spark_bridge")
    for name in spark_bridge.__all__:
        lines += _described(name, getattr(spark_bridge, name))
    lines.append("## sublet.simulation\n")
    lines.append("[Simulate a cluster](../simulation.md) explains it, with examples.\n")
    for name in sublet.simulation.__all__:
        lines += _described(name, getattr(sublet.simulation, name))
    return "\n".join(lines)


def names_on_page() -> frozenset[str]:
    """Return the names of `sublet` that the page has; errors are on another one."""
    outside = (*_CALLING, *_EGRESS, *_PIPELINES, *_SNAPSHOTS)
    return frozenset((*_DECLARING, *_WINDOWS, *_HANDLING, *outside, *_STATES))


def _described(name: str, thing: Any, *, with_constructor: bool = True) -> list[str]:
    if name.startswith("Blocking"):
        return _blocking(name, thing)
    lines = [f"### {name}\n"]
    if inspect.isfunction(thing):
        return [*lines, _code(_signature(name, thing)), _text(thing)]
    if not inspect.isclass(thing):
        return [*lines, f"`{name} = {re.sub(_MODULE, '', repr(thing))}`\n"]
    is_made = not getattr(thing, "_is_protocol", False) and not issubclass(thing, Enum)
    own = not name.endswith("Function") and with_constructor and is_made
    if own and not issubclass(thing, Exception) and name not in ("Context", "Batch"):
        lines.append(_code(_signature(name, thing)))
    lines.append(_text(thing))
    if own and "__init__" in vars(thing) and (text := thing.__init__.__doc__):
        lines.append(f"{inspect.cleandoc(text)}\n")
    lines += [f"- `{each}`: {text}" for each, text in _attributes(thing)]
    lines.append("")
    for method, value in _members(thing):
        if f"{name}.{method}" in _NOT_FOR_USERS:
            continue
        lines.append(f"#### {name}.{method}\n")
        lines += _member(method, value)
    return lines


def _blocking(name: str, thing: type) -> list[str]:
    """Return what a class has that its asyncio twin lacks, and the names of the rest."""
    twin = name.removeprefix("Blocking")
    known = dict(_members(getattr(sublet, twin)))
    shared = [each for each, _ in _members(thing) if each in known]
    about = (inspect.getdoc(thing) or "") if name == "BlockingClient" else ""
    if not about:
        about = f"[`{twin}`](#{twin.lower()}) for programs without an event loop."
    links = ", ".join(f"[`{each}`](#{twin.lower()}{each})" for each in shared)
    told = (
        "Its constructor and these members are" if name == "BlockingClient" else "These members are"
    )
    lines = [
        f"### {name}\n",
        f"{about}\n",
        f"{told} those of `{twin}`, without `await`: {links}.\n",
    ]
    for method, value in _members(thing):
        if method not in known:
            lines += [f"#### {name}.{method}\n", *_member(method, value)]
    return lines


def _attributes(thing: type) -> Iterator[tuple[str, str]]:
    """Yield the attributes that have a text below them, in the class or in `__init__`."""
    (tree,) = ast.parse(dedent(inspect.getsource(thing))).body
    assert isinstance(tree, ast.ClassDef)
    bodies = [each.body for each in tree.body if getattr(each, "name", "") == "__init__"]  # type: ignore[attr-defined]
    for line, below in chain.from_iterable(pairwise(body) for body in (tree.body, *bodies)):
        match line, below:
            case (
                ast.Assign(targets=[ast.Attribute(attr=name) | ast.Name(id=name)])
                | ast.AnnAssign(target=ast.Attribute(attr=name) | ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ) if not name.startswith("_"):
                yield name, " ".join(text.split())


def _member(name: str, value: Any) -> list[str]:
    if isinstance(value, property):
        hints = typing.cast(Any, value.fget).__annotations__
        told = str(hints.get("return", ""))
        return [_code(f"{name}: {told}" if told else name), _text(value)]
    is_async = inspect.iscoroutinefunction(value)
    return [_code(("await " if is_async else "") + _signature(name, value)), _text(value)]


def _members(thing: type) -> Iterator[tuple[str, Any]]:
    """Return public methods and properties that say what they do, in the order of the source."""
    for name, value in vars(thing).items():
        is_member = isinstance(value, property) or inspect.isfunction(value)
        if not name.startswith("_") and is_member and inspect.getdoc(value):
            yield name, value


def _state(name: str) -> list[str]:
    kind = getattr(sublet, name)
    if kind is sublet.State:
        return [f"### {name}\n", _text(kind)]
    cell = _cell_class(kind)
    lines = [f"### {name}\n", _code(_signature(name, kind)), _text(kind)]
    rows = [
        f"| `{shown}` | {text} |" for name, (shown, text) in _OPERATORS.items() if _has(cell, name)
    ]
    for each, value in _inherited_members(cell):
        shown = each if isinstance(value, property) else _one_line(each, value)
        text = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
        rows.append(f"| `{_in_table(shown)}` | {_in_table(text)} |")
    if rows:
        lines += ["| `ctx.state` | |", "|---|---|", *rows, ""]
    return lines


def _has(cell: type, name: str) -> bool:
    return getattr(cell, name, None) is not None


def _inherited_members(cell: type) -> Iterator[tuple[str, Any]]:
    """Return the members of a state's class and its bases that are meant for handlers."""
    seen = {*dir(Cell), *_OF_THE_RUNTIME}
    for kind in inspect.getmro(cell):
        for name, value in _members(kind):
            if name not in seen:
                seen.add(name)
                yield name, value


def _cell_class(kind: type) -> type:
    """Return the class of `ctx.state`, which the kind's method `cell` promises."""
    told = typing.cast(Any, kind).cell.__annotations__["return"].partition("[")[0]
    module = inspect.getmodule(typing.cast(Any, kind).cell)
    found = getattr(module, told)
    if not inspect.isclass(found):  # `ValueCell` is one of two; the one that expires is the longer.
        found = max(typing.get_args(found), key=lambda each: len(vars(each)))
    return typing.cast(type, found)


class _AsWritten:
    """An annotation that is shown without quotes."""

    def __init__(self, text: object) -> None:
        self._text = str(text)

    def __repr__(self) -> str:
        return self._text


def _parameters(thing: Callable[..., Any]) -> tuple[list[str], str]:
    signature = inspect.signature(thing)
    shown: list[str] = []
    was_star = False
    before: inspect.Parameter | None = None
    for name, each in signature.parameters.items():
        if name in ("self", "cls"):
            continue
        if before is not None and before.kind is before.POSITIONAL_ONLY is not each.kind:
            shown.append("/")
        if each.kind is each.KEYWORD_ONLY and not was_star:
            shown.append("*")
        was_star = was_star or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        if each.annotation is not each.empty:
            each = each.replace(annotation=_AsWritten(_annotation(each.annotation)))
        shown.append(re.sub(r"<[^<>]*>", "…", str(each)))
        before = each
    told = signature.return_annotation
    is_told = told not in (signature.empty, None, "None") and not inspect.isclass(thing)
    return shown, f" -> {_annotation(told)}" if is_told else ""


def _annotation(annotation: Any) -> str:
    if isinstance(annotation, typing.ForwardRef):
        return annotation.__forward_arg__
    told = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return told.replace("TypeForm[", "type[")


def _signature(name: str, thing: Callable[..., Any]) -> str:
    line = _one_line(name, thing)
    if len(line) <= _LINE_MAX:
        return line
    shown, told = _parameters(thing)
    return f"{name}(\n" + "".join(f"    {each},\n" for each in shown) + f"){told}"


def _one_line(name: str, thing: Callable[..., Any]) -> str:
    shown, told = _parameters(thing)
    return f"{name}({', '.join(shown)}){told}"


def _code(text: str) -> str:
    return f"```text\n{text}\n```\n"


def _text(thing: Any) -> str:
    return f"{inspect.getdoc(thing) or ''}\n"


def _in_table(text: str) -> str:
    return text.replace("|", "\\|")
