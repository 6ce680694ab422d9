"""A client that sends numbers to its key until somebody kills it, and prints those it was told of.

python -m tests.integration.doomed_client ADDRESS... KEY
"""

from __future__ import annotations

import asyncio
import sys

from sublet import Client

AT_ONCE = 20


async def send_for_ever(addresses: list[str], key: str) -> None:
    async with Client(addresses) as client:
        number = 0
        while True:
            numbers = range(number + 1, number + AT_ONCE + 1)
            async with asyncio.TaskGroup() as tasks:
                for each in numbers:
                    tasks.create_task(client.send("limit/doomed", key, each))
            number += AT_ONCE
            sys.stdout.write(f"{number} taken\n")
            sys.stdout.flush()


if __name__ == "__main__":
    *addresses, key = sys.argv[1:]
    asyncio.run(send_for_ever(addresses, key))
