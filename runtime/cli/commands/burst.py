"""`sublet burst`: instances that help through bursts."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from sublet.functions.errors import UnavailableError
from sublet.runtime.cli.commands.config import settings_of
from sublet.runtime.cli.commands.run import SWITCH_INTERVAL_S, loaded_of, target_of
from sublet.runtime.cli.exit_codes import UsageError, exit_with
from sublet.runtime.config.settings import ConfigError


def serve(target: str | None, flags: Mapping[str, object]) -> None:
    """Serve the invitation that this process was given."""
    from sublet.runtime.faas import NotInvitedError, invitation_of
    from sublet.runtime.faas import serve as serve_invitation
    from sublet.runtime.observability.logging_setup import set_up_logging
    from sublet.runtime.scaling.instances import INVITATION

    try:
        # Neither a setting nor the app's business.
        invitation = invitation_of(os.environ.pop(INVITATION, ""))
        config = settings_of(flags)
        loaded = loaded_of(target_of(target, config))
    except (ConfigError, UsageError) as error:
        exit_with(error)
    except NotInvitedError as error:
        exit_with(UsageError(str(error)))
    set_up_logging(config.log_level, config.log_format, colors=sys.stderr.isatty(), pid=os.getpid())
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        serve_invitation(invitation, loaded, config)
    except UnavailableError as error:
        exit_with(error)
