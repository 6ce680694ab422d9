"""How a process of Sublet logs: structlog, to standard error, for people or as JSON lines."""

from __future__ import annotations

import logging
import sys

import structlog

from sublet.runtime.config.settings import LogFormat, LogLevel

_LEVELS: dict[LogLevel, int] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


def set_up_logging(level: LogLevel, form: LogFormat, *, colors: bool, **bound: object) -> None:
    """Log from `level` up. Entries carry the names and values in `bound`.

    Programs' own `logging` goes the same way, so that a library's warning is not lost.
    """
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    renderers: list[structlog.typing.Processor]
    if form == "json":
        renderers = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        renderers = [
            structlog.dev.ConsoleRenderer(
                colors=colors, exception_formatter=structlog.dev.plain_traceback
            )
        ]
    structlog.configure(
        processors=[*shared, *renderers],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        # The stream is looked up here, not per entry: nobody replaces it in a process that serves.
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(**bound)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderers],
        )
    )
    logging.basicConfig(level=_LEVELS[level], handlers=[handler], force=True)
    # It reports every slow callback and every selector at this level.
    logging.getLogger("asyncio").setLevel(max(_LEVELS[level], logging.WARNING))
