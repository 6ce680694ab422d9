"""How commands get the settings, and `sublet config`."""

from __future__ import annotations

import inspect
import json
import os
import typing
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sublet.runtime.cli.exit_codes import exit_with
from sublet.runtime.config.settings import (
    ConfigError,
    Resolved,
    WorkerConfig,
    read_config,
    resolve,
    without_password,
)
from sublet.runtime.config.settings import settings as known_settings
from sublet.runtime.config.settings_docs import documentation

_SHORT = {"data_dir": "-d", "port": "-p"}
_METAVAR = {"data_dir": "DIR"}


def settings_of(flags: Mapping[str, object]) -> WorkerConfig:
    """Return the settings of this process; raises `ConfigError`."""
    return read_config(os.environ, flags, Path())


def with_settings(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each of these settings, made from its field.

    They arrive as the command's `**flags`; one that was not given is None. Whatever has no
    option of its own can be given by --set.
    """

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        known, texts = known_settings(), documentation()
        own = [
            each
            for each in inspect.signature(command, eval_str=True).parameters.values()
            if each.kind is not each.VAR_KEYWORD
        ]
        made = [_parameter(name, known[name], texts.get(name, "")) for name in names]
        parameters = [*own, *made, *_FILE_AND_SET]
        # What typer looks at to know the options.
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return decorate


def _parameter(name: str, setting: Any, text: str) -> inspect.Parameter:
    wanted = setting.type
    flag = "--" + name.replace("_", "-")
    choices = typing.get_args(wanted)
    is_choice = choices and type(None) not in choices
    if is_choice:
        text = f"{' or '.join(choices)}. {text}"
    if wanted is bool:
        names = [f"{flag}/--no-{flag.removeprefix('--')}"]
    else:
        names = [flag, _SHORT[name]] if name in _SHORT else [flag]
    default = setting.default
    if default in (None, "") or isinstance(default, bool):
        default = {True: "yes", False: "no", None: "none", "": "none"}[default]
    option = typer.Option(*names, help=f"{text} [default: {default}]", metavar=_METAVAR.get(name))
    # Texts of a closed choice are checked by the settings, which know where they came from.
    kind = str if is_choice else wanted
    return _optional(name, Annotated[kind | None, option])


def _optional(name: str, annotation: Any) -> inspect.Parameter:
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword, default=None, annotation=annotation)


_FILE_AND_SET = (
    _optional(
        "config",
        Annotated[
            str | None,
            typer.Option(
                "--config", metavar="FILE", help="Settings file. [default: sublet.toml; -: none]"
            ),
        ],
    ),
    _optional(
        "set",
        Annotated[
            list[str] | None,
            typer.Option(
                "--set", metavar="NAME=VALUE", help="Any other setting; see `sublet config show`."
            ),
        ],
    ),
)


def show(config_file: str | None, as_json: bool) -> None:
    """Print every setting with where it came from."""
    try:
        resolved = resolve(os.environ, {"config": config_file}, Path())
    except ConfigError as error:
        exit_with(error, as_json=as_json)
    if as_json:
        typer.echo(json.dumps({"ok": True, **described(resolved)}))
    else:
        _show(resolved)


def described(resolved: Resolved) -> dict[str, object]:
    """Return the settings as plain values, in a form that scripts may rely on."""
    values = {name: _shown(resolved, name) for name in known_settings()}
    return {
        "file": None if resolved.file is None else str(resolved.file),
        "settings": {
            name: {
                "value": str(value) if isinstance(value, Path) else value,
                "origin": resolved.origins[name].kind,
                "from": resolved.origins[name].name or None,
            }
            for name, value in values.items()
        },
    }


def _show(resolved: Resolved) -> None:
    known = known_settings()
    shown = {name: _text(_shown(resolved, name)) for name in known}
    name_width = max(len(name) for name in known)
    value_width = max(len(text) for text in shown.values())
    typer.echo(f"file: {resolved.file or 'none'}")
    section = ""
    for name, setting in known.items():
        if setting.section != section:
            section = setting.section
            typer.echo(f"\n[{section}]")
        origin = resolved.origins[name]
        line = f"{name:{name_width}}  {shown[name]:{value_width}}  {origin}"
        typer.echo(typer.style(line, bold=origin.kind != "default"))


def _shown(resolved: Resolved, name: str) -> object:
    value = resolved.value(name)
    return without_password(str(value)) if name == "redis_url" else value


def _text(value: object) -> str:
    if isinstance(value, Path):
        return json.dumps(str(value))
    return "not set" if value is None else json.dumps(value)
