"""Runs one target under atheris; a process of its own, which `python -m tests.fuzz` starts.

libFuzzer ends its process as soon as something is found, and writes the input to a file.
"""

from __future__ import annotations

import logging
import sys

import atheris
import structlog

structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))

with atheris.instrument_imports(include=["sublet"], exclude=["sublet.proto"]):
    from tests.fuzz.targets import TARGETS


def main() -> None:
    name, *options = sys.argv[1:]
    atheris.Setup([sys.argv[0], *options], TARGETS[name].run)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
