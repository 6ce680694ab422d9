"""Settings that every kind of test shares."""

import os
import signal

import pytest
from hypothesis import settings

# Two cores shared with other work make single examples slow now and then; pytest-timeout bounds the
# whole test. Derandomized, a failure on one machine is a failure on every machine.
settings.register_profile("sublet", deadline=None, derandomize=True)
settings.load_profile("sublet")

# Spark forks before it starts Java, and gRPC's handlers of forks may end the child before it does.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# A shell lets its background jobs ignore Ctrl-C, and so would all that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


# First, because xdist asks for groups in a hook of the same name.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--dist loadgroup`, keep the tests of a file together: they may share workers.

    All files that share a session of Spark are one group: it takes a while to start, and longer to
    become quick.
    """
    if not config.getoption("loadgroup", False):
        return
    with_spark = {item.path for item in items if "spark" in getattr(item, "fixturenames", ())}
    for item in items:
        group = "spark" if item.path in with_spark else str(item.path)
        item.add_marker(pytest.mark.xdist_group(group))
