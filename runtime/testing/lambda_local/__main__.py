"""Serves AWS Lambda on this machine until Ctrl-C:

python -m sublet.runtime.testing.lambda_local --port 9001
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys

from sublet.runtime.testing.lambda_local import Behaviour, RigError, serve


async def run(port: int, behaviour: Behaviour) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for each in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(each, stopped.set)

    def tell(text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    async with serve(behaviour, port=port, tell=tell) as rig:
        tell(f"lambda: {rig.url}")
        await stopped.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m sublet.runtime.testing.lambda_local",
        description="AWS Lambda on this machine, to try bursts; see docs/how-to/bursts.md.",
    )
    parser.add_argument("--port", type=int, default=9001, help="0: any that is free")
    parser.add_argument("--cold-start", type=float, default=0.3, metavar="SECONDS")
    parser.add_argument("--concurrency", type=int, default=16, metavar="COUNT")
    given = parser.parse_args()
    behaviour = Behaviour(cold_start_s=given.cold_start, concurrency_max=given.concurrency)
    try:
        asyncio.run(run(given.port, behaviour))
    except (RigError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
