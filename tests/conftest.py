"""Settings that every kind of test shares."""

import signal

from hypothesis import settings

# Two cores shared with other work make single examples slow now and then; pytest-timeout bounds the
# whole test. Derandomized, a failure on one machine is a failure on every machine.
settings.register_profile("sublet", deadline=None, derandomize=True)
settings.load_profile("sublet")

# A shell lets its background jobs ignore Ctrl-C, and so would all that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
