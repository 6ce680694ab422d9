"""A process that floods a link with frames until it is killed: `connect|serve address lane`.

`address` is the one to connect to, or the path of a lane to serve; a server prints its address.
"""

import asyncio
import sys

from sublet.runtime.links.grpc_link import connect
from sublet.runtime.links.link import Link
from sublet.runtime.links.server import LinkServer
from sublet.runtime.protocol.frames import Hello
from tests.contract.link_setting import WELCOME, Keeper, Lane, NoService, batch_frame


async def flood(link: Link) -> None:
    for number in range(1, 1_000_000):
        link.send(batch_frame(number))
        await asyncio.sleep(0)


async def flood_server(address: str, lane: str) -> None:
    async with asyncio.TaskGroup() as tasks:
        way: Lane = "auto" if lane == "auto" else "never"
        await flood(await connect(address, Hello("~flood"), Keeper(), tasks, lane=way))


async def flood_client(lane_path: str) -> None:
    accepted = asyncio.get_running_loop().create_future()

    def accept(link: Link, hello: Hello) -> Keeper:
        link.send(WELCOME)
        accepted.set_result(link)
        return Keeper()

    async with LinkServer(accept, NoService(), lane_path=lane_path) as server:
        sys.stdout.write(f"{server.address}\n")
        sys.stdout.flush()
        await flood(await accepted)


if __name__ == "__main__":
    mode, place, lane = sys.argv[1:]
    asyncio.run(flood_server(place, lane) if mode == "connect" else flood_client(place))
