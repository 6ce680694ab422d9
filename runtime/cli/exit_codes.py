"""How a command ends: its exit code, and an error that says what to do next."""

from __future__ import annotations

import json
import sys
from enum import IntEnum
from typing import NoReturn

import typer

from sublet.functions.errors import (
    DeadlineExceededError,
    EgressLostError,
    EncodeError,
    IdempotencyConflictError,
    KeyRejectedError,
    NotCancelledError,
    PayloadError,
    RejectedError,
    RetryLaterError,
    SnapshotLostError,
    SubletError,
    TooLargeError,
    UnknownFunctionError,
    UnknownOutcomeError,
)
from sublet.statestore.contract import StoreReplacedError, StoreSetupError

_WRONG_REQUEST = (
    EncodeError,
    IdempotencyConflictError,
    KeyRejectedError,
    PayloadError,
    TooLargeError,
    UnknownFunctionError,
)
"""What is wrong with a request is wrong before any function sees it."""
_TOO_LATE = (EgressLostError, NotCancelledError, SnapshotLostError)


class ExitCode(IntEnum):
    DONE = 0
    FAILED = 1
    USAGE = 2
    NO_CLUSTER = 3
    RETRY_LATER = 4
    STORE_REPLACED = 5


class UsageError(Exception):
    """The command was typed wrongly; the text says how."""


class NoClusterError(Exception):
    """Nobody is there to be asked; the text says where was looked and what to do."""


class NotLeftError(Exception):
    """A worker that was asked to leave is not seen to have left; the text says how it stands."""


def exit_with(error: Exception, *, as_json: bool = False, of_function: bool = False) -> NoReturn:
    """Tell the error on standard error (as JSON: on standard output) and end the command.

    `of_function`: a refusal may be a function's answer.
    """
    if as_json:
        typer.echo(json.dumps({"ok": False, "error": _described(error)}))
    else:
        typer.echo(f"error: {error}", err=True)
        if hint := _hint(error):
            typer.echo(f"hint: {hint}", err=True)
    raise typer.Exit(code_of(error, of_function=of_function))


def tell_waiting(text: str) -> None:
    """Say what a command waits for, beside its output."""
    typer.echo(f"waiting: {text}", err=True)


def confirm(question: str, *, yes: bool) -> None:
    """Return if it may be done; end the command if not.

    Raises `UsageError` where nobody can be asked.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Not a terminal: add --yes to confirm")
    if not typer.confirm(question, err=True):
        typer.echo("nothing was changed", err=True)
        raise typer.Exit(ExitCode.FAILED)


def code_of(error: Exception, *, of_function: bool = False) -> ExitCode:
    match error:
        case NoClusterError():
            return ExitCode.NO_CLUSTER
        case StoreReplacedError():
            return ExitCode.STORE_REPLACED
        case RetryLaterError() | NotLeftError():
            return ExitCode.RETRY_LATER
        case RejectedError():
            is_usage = not isinstance(error, _TOO_LATE)
            if of_function:
                is_usage = isinstance(error, _WRONG_REQUEST)
            return ExitCode.USAGE if is_usage else ExitCode.FAILED
        case SubletError() if not isinstance(error, StoreSetupError):
            return ExitCode.FAILED
        case _:
            return ExitCode.USAGE


def _described(error: Exception) -> dict[str, object]:
    match error:
        case RetryLaterError():
            return {
                "code": error.code,
                "message": error.message,
                "retry_after_ms": error.retry_after_ms,
            }
        case SubletError():
            return {"code": error.code, "message": str(error)}
        case NoClusterError():
            return {"code": "no_cluster", "message": str(error)}
        case NotLeftError():
            return {"code": "not_left", "message": str(error)}
        case _:
            return {"code": "usage", "message": str(error)}


def _hint(error: Exception) -> str:
    match error:
        case RetryLaterError():
            return "nothing happened; run the same command again"
        case UnknownOutcomeError() | DeadlineExceededError():
            return "it may have happened; with --idempotency-key it is safe to repeat"
        case _:
            return ""
