"""Generates runtime/client/blocking.py: the asyncio classes of the client, for blocking callers.

Run by `make blocking`. A test generates it again and compares, so the committed file always offers
what the asyncio classes do: the same methods with the same parameters, types, overloads and
docstrings. What is written for asyncio is the only source:

- `async def` becomes `def`, and waits for the client's event loop, which has a thread of its own;
- a plain method that returns another of these classes returns its blocking twin, made in the loop;
- other plain methods and properties are passed on;
- `async with` and `async for` become `with` and `for`. What can be iterated has the methods
  `has_waiting`, `fill` and `take`, so that only `fill` has to wait for the loop.
"""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent, indent

ROOT = Path(__file__).resolve().parent.parent
OUTPUT = ROOT / "runtime" / "client" / "blocking.py"
PACKAGE = "sublet.runtime.client"

HEAD = '''"""The client for programs without an event loop: the same classes, each method waits.

Made by `make blocking` from the asyncio classes (generators/blocking_client.py). Do not edit.
"""

from __future__ import annotations

'''

CLIENT_DOCSTRING = '''"""A `Client` for programs without an event loop.

Use it as `with BlockingClient("127.0.0.1:7337") as client`, from any number of threads at once:
what they ask for at the same time shares frames. Its event loop has a thread of its own, which
does not survive a fork: create a client in each process.
"""'''

CLIENT_LIFE = '''
def __enter__(self) -> BlockingClient:
    """Connect to a worker; `UnavailableError` if none answers within `connect_timeout`."""
    self._thread.start()
    return self

def __exit__(self, *_: object) -> None:
    """Say goodbye. Threads that still wait get an error."""
    self._thread.close()

def close(self) -> None:
    """What the end of `with` does; it may be called more than once."""
    self._thread.close()

@property
def is_open(self) -> bool:
    """False before `with`, after its end, and once the client's own thread has failed."""
    return self._thread.is_open
'''

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Twin:
    """A class of asyncio, by its module in runtime/client, that has a blocking twin."""

    module: str
    name: str
    prefetched: Mapping[str, str] = field(default_factory=dict)
    """Generators that read one page ahead: their names, and the methods that read a page."""

    @property
    def blocking_name(self) -> str:
        return f"Blocking{self.name}"


TWINS = (
    Twin("client", "Client"),
    Twin("egress_reader", "EgressReader"),
    Twin("egress_range", "EgressRange", {"batches": "next_batch"}),
    Twin("pipelines", "Pipeline"),
    Twin("pipelines", "Attempt"),
    Twin("snapshots", "StateSnapshot", {"pages": "next_page"}),
)


def generate(sources: Mapping[str, str], twins: tuple[Twin, ...] = TWINS) -> str:
    """Return the blocking classes, given the text of each module of asyncio classes."""
    modules = {name: Module(name, text) for name, text in sources.items()}
    names = {each.name: each.blocking_name for each in twins}
    classes = [BlockingClass(modules[each.module], each, names).text() for each in twins]
    imports = {line for each in modules.values() for line in each.imports_used}
    imports |= {
        f"from {PACKAGE}.loop_thread import LoopThread, one_ahead",
        "from collections.abc import Generator",
    }
    return formatted(HEAD + "\n".join(sorted(imports)) + "\n\n\n" + "\n\n\n".join(classes) + "\n")


class Module:
    """The source of asyncio classes, and which of its names their twins need."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.lines = text.splitlines()
        self.tree = ast.parse(text)
        self.imports_used: set[str] = set()
        self._origin: dict[str, str] = {}
        """Name to the import that brings it."""
        for each in self.tree.body:
            self._add_origin(each)

    def _add_origin(self, node: ast.stmt) -> None:
        own = f"from {PACKAGE}.{self.name} import "
        match node:
            case ast.Import():
                for alias in node.names:
                    shown = f" as {alias.asname}" if alias.asname else ""
                    name = alias.asname or alias.name.partition(".")[0]
                    self._origin[name] = f"import {alias.name}{shown}"
            case ast.ImportFrom():
                for alias in node.names:
                    shown = f" as {alias.asname}" if alias.asname else ""
                    line = f"from {node.module} import {alias.name}{shown}"
                    self._origin[alias.asname or alias.name] = line
            case ast.If():
                for each in node.body:
                    self._add_origin(each)
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                self._origin[node.name] = own + node.name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                self._origin[name] = own + name

    def class_named(self, name: str) -> ast.ClassDef:
        for each in self.tree.body:
            if isinstance(each, ast.ClassDef) and each.name == name:
                return each
        raise LookupError(f"{self.name}.py has no class {name}; see TWINS")

    def use(self, name: str) -> None:
        """Import a name in the generated module."""
        if name in self._origin:
            self.imports_used.add(self._origin[name])
        elif not hasattr(builtins, name):
            raise LookupError(f"{self.name}.py: where does {name} come from?")

    def use_all_in(self, *nodes: ast.AST | None) -> None:
        for node in nodes:
            for each in ast.walk(node) if node is not None else ():
                if isinstance(each, ast.Name):
                    self.use(each.id)


class BlockingClass:
    """Writes the twin of one class."""

    def __init__(self, module: Module, twin: Twin, names: Mapping[str, str]) -> None:
        self._module = module
        self._twin = twin
        self._names = names
        self._node = module.class_named(twin.name)
        self._is_client = twin.name == "Client"
        bases = [ast.unparse(each) for each in self._node.bases]
        self._base = next((each for each in bases if each.startswith("Generic[")), "")
        self._parameters = self._base.removeprefix("Generic")
        self._own_type = twin.blocking_name + self._parameters

    def text(self) -> str:
        self._module.use(self._twin.name)
        self._module.use_all_in(*[each for each in self._node.bases if self._base])
        parts = [self._class_docstring(), *self._members()]
        body = "\n\n".join(dedent(each).strip("\n") for each in parts)
        base = f"({self._base})" if self._base else ""
        return f"class {self._twin.blocking_name}{base}:\n{indent(body, '    ')}"

    def _class_docstring(self) -> str:
        if self._is_client:
            return CLIENT_DOCSTRING
        text = ast.get_docstring(self._node) or ""
        about = f"`{self._twin.name}` for programs without an event loop."
        return f'"""{about}\n\n{self._reworded(text)}\n"""'

    def _members(self) -> Iterator[str]:
        if not self._is_client:
            yield f"""
def __init__(self, twin: {self._twin.name}{self._parameters}, thread: LoopThread) -> None:
    self._async = twin
    self._thread = thread
"""
        for each in self._node.body:
            if isinstance(each, Function):
                yield from self._member(each)

    def _member(self, node: Function) -> Iterator[str]:
        match node.name:
            case "__init__" if self._is_client:
                yield self._client_init(node)
                yield CLIENT_LIFE
            case "__aenter__" if not self._is_client:
                yield self._enter(node)
            case "__aexit__" if not self._is_client:
                yield "def __exit__(self, *_: object) -> None:\n    self.close()"
            case "__aiter__":
                yield f"def __iter__(self) -> {self._own_type}:\n    return self"
            case "__anext__":
                yield self._next(node)
            case name if not name.startswith("_"):
                yield self._method(node)
                for generator, method in self._twin.prefetched.items():
                    if method == name:
                        yield self._prefetching(generator, node)

    def _client_init(self, node: Function) -> str:
        return f"""
{self._header(node)}
{self._docstring(node)}
    self._async = Client({_arguments(node)})
    self._thread = LoopThread(self._async)
"""

    def _enter(self, node: Function) -> str:
        return f"""
def __enter__(self) -> {self._own_type}:
{self._docstring(node)}
    self._thread.wait(self._async.__aenter__)
    return self
"""

    def _next(self, node: Function) -> str:
        assert node.returns is not None
        self._module.use_all_in(node.returns)
        return f"""
def __next__(self) -> {ast.unparse(node.returns)}:
    if not self._async.has_waiting and not self._thread.wait(self._async.fill):
        raise StopIteration
    return self._async.take()
"""

    def _prefetching(self, name: str, node: Function) -> str:
        """Write a generator over what a method returns until it returns nothing."""
        assert node.returns is not None
        returned = ast.unparse(node.returns).removesuffix(" | None")
        return f'''
def {name}(self) -> Generator[{returned}, None, None]:
    """Yield all that `{node.name}` returns, one read ahead. Closing it does not wait."""
    return one_ahead(self._thread.begin, self._async.{node.name})
'''

    def _method(self, node: Function) -> str:
        is_overload = any(ast.unparse(each) == "overload" for each in node.decorator_list)
        decorators = "".join(f"@{ast.unparse(each)}\n" for each in node.decorator_list)
        self._module.use_all_in(*node.decorator_list)
        body = "    ..." if is_overload else f"    {self._body(node)}"
        parts = [decorators + self._header(node), self._docstring(node), body]
        return "\n".join(filter(None, parts))

    def _body(self, node: Function) -> str:
        if any(ast.unparse(each) == "property" for each in node.decorator_list):
            return f"return self._async.{node.name}"
        call = f"self._async.{node.name}({_arguments(node)})"
        returned = "" if node.returns is None else ast.unparse(node.returns)
        if isinstance(node, ast.AsyncFunctionDef):
            has_arguments = call[-2] != "("
            ask = f"lambda: {call}" if has_arguments else f"self._async.{node.name}"
            waiting = f"self._thread.wait({ask})"
            return waiting if returned == "None" else f"return {waiting}"
        if (twin := self._twin_name(node.returns)) is not None:
            made = f"self._thread.run(lambda: {call})"
            return f"return {self._names[twin.id]}({made}, self._thread)"
        return call if returned == "None" else f"return {call}"

    def _header(self, node: Function) -> str:
        """Return the lines from `def` to the colon as they are, with the twin's return type."""
        self._module.use_all_in(*_annotations_and_defaults(node))
        body, returns = node.body[0], node.returns
        lines = self._module.lines[node.lineno - 1 : body.lineno]
        lines[-1] = lines[-1][: body.col_offset]
        if (twin := self._twin_name(returns)) is not None:
            at, end = twin.lineno - node.lineno, twin.end_col_offset
            lines[at] = lines[at][: twin.col_offset] + self._names[twin.id] + lines[at][end:]
            self._module.use_all_in(returns.slice if isinstance(returns, ast.Subscript) else None)
        else:
            self._module.use_all_in(returns)
        return dedent("\n".join(lines)).rstrip().replace("async def ", "def ", 1)

    def _twin_name(self, returns: ast.expr | None) -> ast.Name | None:
        """Return the name of a class with a twin, if that is what a method returns."""
        name = returns.value if isinstance(returns, ast.Subscript) else returns
        return name if isinstance(name, ast.Name) and name.id in self._names else None

    def _docstring(self, node: Function) -> str:
        text = ast.get_docstring(node, clean=True)
        if not text:
            return ""
        shown = self._reworded(text)
        end = "\n" if "\n" in shown else ""
        begin = "\n" if (ast.get_docstring(node, clean=False) or "").startswith("\n") else ""
        return indent(f'"""{begin}{shown}{end}"""', "    ")

    def _reworded(self, text: str) -> str:
        """Return a docstring about the blocking classes."""
        text = re.sub(r"\basync (with|for)\b", r"\1", text)
        text = re.sub(r"\bawait ", "", text)
        for name, blocking in self._names.items():
            text = re.sub(rf"`{name}\b", f"`{blocking}", text)
        return text


def _annotations_and_defaults(node: Function) -> list[ast.AST | None]:
    arguments = node.args
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [
        *[each.annotation for each in every],
        *arguments.defaults,
        *arguments.kw_defaults,
    ]


def _arguments(node: Function) -> str:
    """Return the parameters of a method, as it passes them on."""
    arguments = node.args
    if arguments.vararg or arguments.kwarg:
        raise NotImplementedError(f"{node.name} takes *args or **kwargs; name its parameters")
    positional = [each.arg for each in (*arguments.posonlyargs, *arguments.args)][1:]
    return ", ".join([*positional, *[f"{each.arg}={each.arg}" for each in arguments.kwonlyargs]])


def formatted(text: str) -> str:
    """Return the text as ruff writes it, without imports that are not needed."""
    ruff = [sys.executable, "-m", "ruff"]
    where = ["--stdin-filename", str(OUTPUT), "-"]
    for command in (["check", "--quiet", "--fix", "--select", "I,F401"], ["format", "--quiet"]):
        found = subprocess.run(
            [*ruff, *command, *where], input=text, capture_output=True, text=True, check=True
        )
        text = found.stdout
    return text


def sources() -> dict[str, str]:
    """Return the modules of the asyncio classes, by name."""
    folder = OUTPUT.parent
    return {each.module: (folder / f"{each.module}.py").read_text() for each in TWINS}


def main() -> None:
    OUTPUT.write_text(generate(sources()))


if __name__ == "__main__":
    main()
