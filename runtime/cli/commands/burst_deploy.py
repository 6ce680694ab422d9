"""`sublet burst deploy` and `remove`: the app as a function of AWS Lambda, and its end."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from sublet.runtime.cli.commands.config import settings_of
from sublet.runtime.cli.commands.run import loaded_of, target_of
from sublet.runtime.cli.exit_codes import UsageError, confirm, exit_with
from sublet.runtime.config.settings import ConfigError, WorkerConfig

if TYPE_CHECKING:
    from sublet.runtime.cli.packing import Package
    from sublet.runtime.scaling.deployment import Deployer, Step, Wanted


class Options(NamedTuple):
    """What may be said of a function beside the settings."""

    name: str = ""
    role: str = ""
    memory_mb: int = 0
    timeout_s: int = 0
    variables: Sequence[str] = ()
    subnets: Sequence[str] = ()
    security_groups: Sequence[str] = ()
    packages: Sequence[str] = ()
    include: Sequence[str] = ()
    output: Path | None = None
    dry_run: bool = False


def deploy(
    target: str | None, options: Options, flags: Mapping[str, object], as_json: bool
) -> None:
    """Pack the app, and make or update its function."""
    from sublet.runtime.scaling.aws import AwsError
    from sublet.runtime.scaling.deployment import steps_to

    try:
        config = settings_of(flags)
        function = _function_of(options.name, config)
        named = target_of(target, config)
        package = _packed(named, options)
        wanted = _wanted(function, named, options, config, package)
        deployer = _deployer(config, quiet=as_json)
        found = deployer.found(function, with_role=not wanted.role_arn)
        if found.configuration is not None and not found.is_ours:
            raise UsageError(
                f"there is a function {function!r} that `sublet burst deploy` has not made; "
                "choose another --name"
            )
        steps = steps_to(wanted, found)
        if options.output is not None:
            options.output.write_bytes(package.data)
        if not as_json:
            typer.echo(f"package {package.digest}: {package.described}")
        _carry_out(steps, deployer, package.data, options.dry_run, as_json)
    except (AwsError, ConfigError, UsageError, OSError) as error:
        exit_with(UsageError(str(error)), as_json=as_json)
    if as_json:
        told = {"ok": True, "function": function, "package": package.digest}
        told |= {"steps": [each.told for each in steps], "dry_run": options.dry_run}
        typer.echo(json.dumps({**told, "bytes": len(package.data)}))
    elif not options.dry_run:
        typer.echo(f'done; workers use it with instances = "lambda:{function}"')


def remove(name: str, dry_run: bool, yes: bool, flags: Mapping[str, object], as_json: bool) -> None:
    """Delete what `deploy` has created."""
    from sublet.runtime.scaling.aws import AwsError
    from sublet.runtime.scaling.deployment import steps_to_remove

    try:
        config = settings_of(flags)
        function = _function_of(name, config)
        deployer = _deployer(config, quiet=as_json)
        found = deployer.found(function)
        steps = steps_to_remove(function, found)
        if found.configuration is not None and not found.is_ours:
            raise UsageError(
                f"`sublet burst deploy` has not made the function {function!r}; nothing was changed"
            )
        if steps and not dry_run:
            confirm(f"Delete the function {function!r} and what was made for it?", yes=yes)
        _carry_out(steps, deployer, b"", dry_run, as_json)
    except (AwsError, ConfigError, UsageError) as error:
        exit_with(UsageError(str(error)), as_json=as_json)
    if as_json:
        told = [each.told for each in steps]
        typer.echo(
            json.dumps({"ok": True, "function": function, "steps": told, "dry_run": dry_run})
        )


def _function_of(name: str, config: WorkerConfig) -> str:
    """Return the function's name; raises `UsageError` where there is nothing to deploy."""
    from sublet.runtime.scaling.aws import KIND, function_of

    if not name and not config.instances.startswith(KIND):
        match config.instances:
            case "local":
                why = "instances is 'local': processes of this machine need no deployment"
            case "":
                why = 'give a --name, or set instances = "lambda:NAME"'
            case _:
                why = (
                    f"instances is {config.instances!r:.200}: an HTTP service is deployed by its "
                    "own tools, with `sublet burst serve APP` as the command of its container"
                )
        raise UsageError(why)
    try:
        return function_of(f"{KIND}{name}" if name else config.instances)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _packed(target: str, options: Options) -> Package:
    from sublet.runtime.cli.packing import PackError, pack

    loaded_of(target)  # It says best what is wrong with an app.
    try:
        return pack(target, Path.cwd(), with_packages=options.packages, include=options.include)
    except PackError as error:
        raise UsageError(str(error)) from None


def _wanted(
    function: str, target: str, options: Options, config: WorkerConfig, package: Package
) -> Wanted:
    from sublet.runtime.faas import APP
    from sublet.runtime.scaling.deployment import Wanted

    variables = {APP: target}
    if config.code_version:
        variables["SUBLET_CODE_VERSION"] = config.code_version
    for text in options.variables:
        name, mark, value = text.partition("=")
        if not mark or not name.isidentifier():
            raise UsageError(f"--env is {text!r:.200}; allowed: NAME=VALUE")
        variables[name] = value
    try:
        return Wanted(
            function=function,
            runtime=package.runtime,
            architecture=package.architecture,
            memory_mb=options.memory_mb or round(config.instance_gb * 1000),
            timeout_s=options.timeout_s or int(min(900, config.instance_life_s)),
            variables=variables,
            digest=package.digest,
            package_bytes=len(package.data),
            role_arn=options.role,
            subnets=options.subnets,
            security_groups=options.security_groups,
        )
    except ValueError as error:
        raise UsageError(str(error)) from None


def _deployer(config: WorkerConfig, *, quiet: bool) -> Deployer:
    from sublet.runtime.scaling.aws import AwsAccess
    from sublet.runtime.scaling.deployment import Deployer

    access = AwsAccess(config.aws_region, config.aws_endpoint)
    return Deployer(access) if quiet else Deployer(access, _Progress().tell)


def _carry_out(
    steps: Sequence[Step], deployer: Deployer, package: bytes, dry_run: bool, as_json: bool
) -> None:
    if not steps and not as_json:
        typer.echo("nothing to do: all is as it should be")
    for step in steps:
        if not as_json:
            typer.echo(f"would {step.told}" if dry_run else step.told)
        if not dry_run:
            deployer.do(step, package)


class _Progress:
    """How much of the package has been sent, on standard error: a line that changes in a terminal,
    a line every quarter elsewhere."""

    def __init__(self) -> None:
        self._told = 0

    def tell(self, sent: int, total: int) -> None:
        step = 1 if sys.stderr.isatty() else 25
        share = 100 * sent // total // step * step
        if share == self._told:
            return
        self._told = share
        text = f"uploading: {share} % of {total / 2**20:.1f} MB"
        if sys.stderr.isatty():
            typer.echo(f"\r{text}", err=True, nl=share >= 100)
        else:
            typer.echo(text, err=True)
