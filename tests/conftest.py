"""Settings that every kind of test shares."""

import os
import signal

import structlog
from hypothesis import settings

# Hooks: which process runs which tests.
from tests.work_units import (  # noqa: F401
    pytest_collection_modifyitems,
    pytest_xdist_make_scheduler,
)

# Two cores shared with other work make single examples slow now and then; pytest-timeout bounds the
# whole test. Derandomized, a failure on one machine is a failure on every machine.
settings.register_profile("sublet", deadline=None, derandomize=True)
settings.load_profile("sublet")

# Spark forks before it starts Java, and gRPC's handlers of forks may end the child before it does.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# A shell lets its background jobs ignore Ctrl-C, and so would all that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests that fail on purpose write many tracebacks, and rich ones take a second each.
structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.StackInfoRenderer(),
        structlog.dev.set_exc_info,
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
        structlog.dev.ConsoleRenderer(
            colors=False, exception_formatter=structlog.dev.plain_traceback
        ),
    ]
)
