"""AWS Lambda on this machine, as far as bursts need it: for tests, and for trying bursts out.

One loopback endpoint serves the calls of Lambda and IAM that boto3 makes here. The deployed zip is
unpacked, and `awslambdaric`, which AWS's own images run, runs its handler in a process against a
Runtime API of its own, without any other installed package: what the zip lacks is missing here,
too. Environments start cold, are frozen between invocations, reclaimed, killed at the time limit;
what is too much is throttled or queued.

What it is not: memory and cores are not limited, signatures are not checked, and there is no
account beside the one.
"""

from sublet.runtime.testing.lambda_local.environment import Environment, Outcome
from sublet.runtime.testing.lambda_local.service import (
    Behaviour,
    LambdaLocal,
    Record,
    RigError,
    serve,
)
from sublet.runtime.testing.lambda_local.settings import FunctionSettings

__all__ = [
    "Behaviour",
    "Environment",
    "FunctionSettings",
    "LambdaLocal",
    "Outcome",
    "Record",
    "RigError",
    "serve",
]
