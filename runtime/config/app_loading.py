"""Finds the apps that a command names: `pkg.module:app`, `path/to/file.py:app`, or the module only.

This runs the user's code: a module is imported as Python would import it from the current
directory. Whatever goes wrong is told with what was found instead.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from sublet.functions.app import App, Function, functions_of
from sublet.runtime.config.code_version import code_versions


class LoadError(Exception):
    """The apps cannot be had; the text says what was found and what to write instead."""


class Loaded(NamedTuple):
    """What a target names."""

    functions: dict[str, Function]
    """By full name."""
    versions: dict[str, str]
    """App to the version of its code."""


class LoadedApps(NamedTuple):
    module: str
    """That the target names."""
    apps: Sequence[App]


def load_functions(target: str, directory: Path) -> dict[str, Function]:
    """Return all functions of the apps that `target` names, by full name."""
    return load(target, directory).functions


def load(target: str, directory: Path) -> Loaded:
    """Return the functions of the apps that `target` names, and which code they have.

    `directory` (usually the current one) becomes importable first. An exception that the module
    itself raises is passed on as it is, for its traceback is what helps.
    """
    apps = load_apps(target, directory).apps
    try:
        return Loaded(functions_of(apps), code_versions(apps, directory))
    except ValueError as error:
        raise LoadError(f"{target}: {error}") from None


def load_apps(target: str, directory: Path) -> LoadedApps:
    """Return the apps that `target` names; as `load`."""
    module_name, _, attribute = _split(target)
    _make_importable(directory)
    if module_name.endswith(".py") or "/" in module_name:
        module = _import_file(directory / module_name)
    else:
        module = _import_module(module_name, directory)
    apps = _named_apps(module, attribute) if attribute else _only_app(module)
    names = [app.name for app in apps]
    if twice := {name for name in names if names.count(name) > 1}:
        raise LoadError(f"{target}: more than one app is named {', '.join(sorted(twice))}")
    return LoadedApps(module.__name__, apps)


def _split(target: str) -> tuple[str, str, str]:
    module_name, mark, attribute = target.rpartition(":") if ":" in target else (target, "", "")
    if not module_name or (mark and not attribute.isidentifier()):
        raise LoadError(f"{target!r} does not name an app; write module:app or path/to/file.py:app")
    return module_name, mark, attribute


def _make_importable(directory: Path) -> None:
    entry = str(directory.resolve())
    if entry not in sys.path:
        sys.path.insert(0, entry)


def _import_module(name: str, directory: Path) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # A missing module that the user's own module imports is the user's to see.
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise
        found = sorted(
            each.stem for each in directory.glob("*.py") if not each.name.startswith("_")
        )
        near = f"; modules here: {', '.join(found[:20])}" if found else ""
        raise LoadError(
            f"there is no module {missing!r} in {directory.resolve()} or among the installed "
            f"packages{near}"
        ) from None
    except (ImportError, TypeError, ValueError) as error:
        if name.startswith("."):
            raise LoadError(f"{name!r} is relative; write the module's full name") from error
        raise


def _import_file(path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise LoadError(f"there is no file {path}")
    # Files beside it are importable, as when Python runs it as a script.
    _make_importable(path.parent)
    loaded = sys.modules.get(path.stem)
    if loaded is not None:
        if getattr(loaded, "__file__", None) == str(path):
            return loaded
        raise LoadError(
            f"{path} would be the module {path.stem!r}, which exists already "
            f"({getattr(loaded, '__file__', 'built in')}); rename the file"
        )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise LoadError(f"{path} is not a Python file; its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    # Before it runs: type hints of its dataclasses are looked up by module name.
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


def _named_apps(module: ModuleType, attribute: str) -> Sequence[App]:
    try:
        found = getattr(module, attribute)
    except AttributeError:
        raise LoadError(
            f"module {module.__name__!r} has no {attribute!r}; {_apps_text(module)}"
        ) from None
    if isinstance(found, App):
        return [found]
    if isinstance(found, list | tuple) and found and all(isinstance(each, App) for each in found):
        return found
    raise LoadError(
        f"{module.__name__}:{attribute} is {_described(found)}, not an App or a list of Apps; "
        f"{_apps_text(module)}"
    )


def _only_app(module: ModuleType) -> Sequence[App]:
    apps = _apps_in(module)
    if len({id(app) for app in apps.values()}) == 1:
        return [next(iter(apps.values()))]
    raise LoadError(f"{module.__name__!r} alone names no app; {_apps_text(module)}")


def _apps_in(module: ModuleType) -> dict[str, App]:
    return {name: value for name, value in vars(module).items() if isinstance(value, App)}


def _apps_text(module: ModuleType) -> str:
    apps = _apps_in(module)
    if not apps:
        return 'no App was found in it: declare one with app = App("name")'
    return f"write one of: {', '.join(f'{module.__name__}:{name}' for name in sorted(apps))}"


def _described(value: object) -> str:
    if isinstance(value, Function):
        return "a function"
    if isinstance(value, list | tuple):
        kinds = sorted({type(each).__name__ for each in value})
        return f"a {type(value).__name__} of {', '.join(kinds) or 'nothing'}"
    return f"of type {type(value).__name__}"
