"""What a handler's exception means: whose fault it is, whether to try again, and where it arose.

Three things can go wrong while a handler runs, and they look alike:

- Its own code raises, or asks Sublet for something impossible: to encode a socket, to send to a
  function that does not exist, to keep a state of the wrong type. That is the handler's error, and
  its caller can do nothing about it.
- It refuses on purpose: it raises a `RejectedError`, or lets through what a function that it has
  called replied. That is an answer, told as it is.
- Sublet itself refuses the message before the handler sees it: that is the message's error.

Who has raised tells them apart: the innermost frame of the traceback, and whether there is any
frame of the handler's.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Iterator
from functools import lru_cache, partial
from traceback import TracebackException
from types import TracebackType
from typing import NamedTuple

from sublet.functions.app import Function
from sublet.functions.errors import (
    ERROR_TEXT_MAX,
    FailedError,
    HandlerError,
    RejectedError,
    SideEffectError,
    SubletError,
    text_of,
)
from sublet.functions.source_place import declared_at, place_text
from sublet.runtime.execution.threads import HandlerInterrupt
from sublet.runtime.partition.model.work import Failure, no_traceback
from sublet.runtime.protocol.frames import ErrorInfo

KEY_TEXT_MAX = 100
TRACEBACK_CHARS_MAX = 4_000
"""Of what is kept of a traceback; its end says most."""
TRACEBACK_HEAD_CHARS = 1_000
FRAMES_MAX = 32

_OUR_PACKAGE = "sublet"


class BadReplyError(Exception):
    """A handler has returned what cannot be its reply. For the runtime alone: a handler never sees
    it, and a caller gets its text."""


class _Frame(NamedTuple):
    module: str
    path: str
    line: int
    traceback: TracebackType

    @property
    def is_ours(self) -> bool:
        return self.module.partition(".")[0] == _OUR_PACKAGE


def failure_of(error: BaseException, function: Function, key: str | None = None) -> Failure:
    """Say what an exception means that has ended a handler: refuse, retry, or give up.

    `key` is None if the handler has had messages of several keys, and may be empty.
    """
    frames = list(_frames(error.__traceback__))
    users = [frame for frame in frames if not frame.is_ours]
    is_final = isinstance(error, RejectedError | FailedError | BadReplyError)
    # What failed outside may succeed when it is done again.
    is_final = is_final and not isinstance(error, SideEffectError)
    if isinstance(error, HandlerInterrupt):
        code = "handler_timeout"
        text = f"{function.name} ran longer than its timeout of {function.timeout_ms:g} ms"
    elif isinstance(error, BadReplyError):
        code, users = "handler_failed", []
        text = f"{function.name} {error}"
    elif isinstance(error, SubletError) and (error.is_reply or not (users and frames[-1].is_ours)):
        return Failure(ErrorInfo(error.code, text_of(error)), not is_final)
    else:
        code = error.code if isinstance(error, HandlerError) else "handler_failed"
        text = f"{function.name} raised {type(error).__name__}: {text_of(error)}"
    place = _line_to_blame(users, function) or declared_at(function.__wrapped__)
    known = [f"key {key!r:.{KEY_TEXT_MAX}}"] if key else []
    if place:
        known.append(place)
    where = f" ({', '.join(known)})" if known else ""
    return Failure(
        ErrorInfo(code, _storable(text[:ERROR_TEXT_MAX]) + where),
        not is_final,
        error,
        partial(_traceback_text, error, frames) if users else no_traceback,
        f"{type(error).__name__} {place}",
    )


def _traceback_text(error: BaseException, frames: list[_Frame]) -> str:
    """Return an exception with the part of its traceback that is user code's, within bounds.

    What Sublet does in turn to come to an error of its own, the text of the error says better.
    """
    places = [place for place, frame in enumerate(frames) if not frame.is_ours]
    is_ours = isinstance(error, SubletError) and frames[-1].is_ours
    limit = -FRAMES_MAX
    if is_ours and places[-1] - places[0] < FRAMES_MAX:
        limit = places[-1] - places[0] + 1
    since = frames[places[0]].traceback
    try:
        told = TracebackException(type(error), error, since, limit=limit, compact=True)
        has_more = not is_ours or isinstance(error, SideEffectError)
        text = "".join(told.format(chain=has_more)).rstrip()
    except Exception as broken:  # What it looks at may be user code.
        return f"its traceback is unavailable ({type(broken).__name__})"
    if len(text) > TRACEBACK_CHARS_MAX:
        tail = TRACEBACK_CHARS_MAX - TRACEBACK_HEAD_CHARS
        text = f"{text[:TRACEBACK_HEAD_CHARS]}\n…\n{text[-tail:]}"
    return _storable(text)


def _frames(traceback: TracebackType | None) -> Iterator[_Frame]:
    while traceback is not None:
        frame = traceback.tb_frame
        module = frame.f_globals.get("__name__", "")
        yield _Frame(str(module), frame.f_code.co_filename, traceback.tb_lineno, traceback)
        traceback = traceback.tb_next


def _line_to_blame(users: list[_Frame], function: Function) -> str:
    """Return the innermost line that the function's authors have written themselves."""
    libraries = _library_roots()
    root = getattr(function.__wrapped__, "__module__", "").partition(".")[0]
    own = [each for each in users if not each.path.startswith(libraries)]
    near = [each for each in users if each.module.partition(".")[0] == root]
    for found in (own, near, users):
        if found:
            return place_text(found[-1].path, found[-1].line)
    return ""


@lru_cache(maxsize=1)
def _library_roots() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple({paths[name].rstrip(os.sep) + os.sep for name in names if paths.get(name)})


def _storable(text: str) -> str:
    """Names of files and what JSON has escaped may have halves of characters."""
    return text.encode(errors="backslashreplace").decode()
