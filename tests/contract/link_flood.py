"""A process that floods a link with frames until it is killed: `address lane`."""

import asyncio
import sys

from sublet.runtime.frames import Hello
from sublet.runtime.link_grpc import connect
from tests.contract.link_setting import Keeper, Lane, batch_frame


async def flood(address: str, lane: Lane) -> None:
    async with asyncio.TaskGroup() as tasks:
        link = await connect(address, Hello("~flood"), Keeper(), tasks, lane=lane)
        for number in range(1, 1_000_000):
            link.send(batch_frame(number))
            await asyncio.sleep(0)


if __name__ == "__main__":
    asyncio.run(flood(sys.argv[1], "auto" if sys.argv[2] == "auto" else "never"))
