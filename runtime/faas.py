"""Where an instance begins: a process that was given an invitation, or a function of AWS Lambda."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Protocol

import msgspec

from sublet.functions.errors import UnavailableError
from sublet.runtime.config.app_loading import Loaded, load
from sublet.runtime.config.settings import WorkerConfig, read_config
from sublet.runtime.instance import Instance
from sublet.runtime.scaling.calibration import core_ms
from sublet.runtime.scaling.instances import INVITATION, Invitation, Measure, WarmUp

APP = "SUBLET_APP"
"""The variable that says which app a function of a service has."""
APP_FOLDER = "app"
"""Where a package has the app's files, if not beside those of installed packages: there, these
would count as the app's own code."""
WARM_MS_MAX = 90.0
"""So long an invocation may take that only keeps an environment."""
_loaded: dict[str, Loaded] = {}
"""Apps, by target: a process may serve several invitations, one after the other."""


class NotInvitedError(ValueError):
    """There is no invitation, or it makes no sense; the text says what to do."""


class LambdaContext(Protocol):
    def get_remaining_time_in_millis(self) -> int: ...


def invitation_of(text: str) -> Invitation:
    """Read an invitation; raises `NotInvitedError`."""
    try:
        invitation = msgspec.json.decode(text, type=Invitation)
        bytes.fromhex(invitation.key)
    except (msgspec.MsgspecError, ValueError) as error:
        raise NotInvitedError(
            f"{INVITATION} is no invitation ({error}); instances are started by a cluster with "
            "`burst` set, not by hand"
        ) from None
    return invitation


def serve(invitation: Invitation, loaded: Loaded, config: WorkerConfig) -> None:
    """Serve until it is released, loses its worker, or its time is over.

    Raises `UnavailableError` if the worker cannot be reached, or does not want it.
    """
    import uvloop

    versions = loaded.versions
    if config.code_version:
        # As workers do.
        apps = {name.partition("/")[0] for name in loaded.functions}
        versions = dict.fromkeys(sorted(apps), config.code_version)
    instance = Instance(loaded.functions, invitation, config, versions=versions)
    try:
        uvloop.run(instance.run())
    except* UnavailableError as group:
        error = group.exceptions[0]
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        raise error from None


def _asked(event: dict[str, Any]) -> WarmUp | Measure | None:
    """Return what an event is; None: an invitation, or nothing that is known."""
    if "type" not in event:
        return None
    try:
        return msgspec.convert(event, WarmUp | Measure)
    except msgspec.ValidationError:
        return None


def handle(event: dict[str, Any], context: LambdaContext) -> dict[str, Any]:
    """What AWS Lambda calls, with an invitation as the event. Returns how that went.

    Other events keep an environment warm, or ask how quick a core is here.
    """
    match _asked(event):
        case WarmUp(ms):
            # Meanwhile others come to other environments.
            time.sleep(min(ms, WARM_MS_MAX) / 1000)
            return {"warm": True}
        case Measure():
            return {"core_ms": core_ms()}
    invitation = invitation_of(msgspec.json.encode(event).decode())
    left_s = context.get_remaining_time_in_millis() / 1000
    invitation = msgspec.structs.replace(invitation, seconds=min(invitation.seconds, left_s))
    target = os.environ.get(APP, "")
    if not target:
        raise NotInvitedError(f"{APP} is not set; it names the app, such as shop:app")
    if target not in _loaded:
        folder = Path.cwd() / APP_FOLDER
        _loaded[target] = load(target, folder if folder.is_dir() else Path.cwd())
    config = read_config(os.environ, {}, Path())
    try:
        serve(invitation, _loaded[target], config)
    except UnavailableError as error:
        # An event may come twice, or after its worker has gone: nothing is wrong here.
        return {"served": False, "reason": str(error)}
    return {"served": True, "reason": ""}
