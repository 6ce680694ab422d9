"""Settings that every kind of test shares."""

import os
import signal

from hypothesis import settings

# Two cores shared with other work make single examples slow now and then; pytest-timeout bounds the
# whole test. Derandomized, a failure on one machine is a failure on every machine.
settings.register_profile("sublet", deadline=None, derandomize=True)
settings.load_profile("sublet")

# Spark forks before it starts Java, and gRPC's handlers of forks may end the child before it does.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# A shell lets its background jobs ignore Ctrl-C, and so would all that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
