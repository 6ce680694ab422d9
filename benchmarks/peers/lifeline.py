"""Lets a server process of a measurement end with the process that started it."""

import asyncio
import sys

# Nothing here runs longer; a server forgotten by a bug ends by itself.
LIFETIME_S = 1_800.0


async def parent_is_gone() -> None:
    """Return when standard input closes, or after `LIFETIME_S`."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    try:
        async with asyncio.timeout(LIFETIME_S):
            await reader.read()
    except TimeoutError:
        pass  # As good a reason to end as the other.
    finally:
        transport.close()
