"""The examples of docs/protocol.md work as they stand there, without the sublet package."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

import msgspec
import pytest

from sublet.functions.address import partition_index_of, slot_of
from sublet.runtime.links.link import Link
from sublet.runtime.links.server import LinkServer
from sublet.runtime.protocol.frames import Ack, Batch, Data, ErrorInfo, Frame, Hello, Kind
from sublet.runtime.protocol.rpc import CallRequest
from sublet.runtime.protocol.wire.errors import STATUS_BY_CODE
from tests.contract.link_setting import PATIENCE_S, WELCOME, Keeper, NoService

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "protocol.md").read_text()
UNARY, STREAM = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


class Doubling(NoService):
    async def call(self, request: CallRequest) -> bytes:
        return msgspec.msgpack.encode([request.key, msgspec.msgpack.decode(request.payload)])


class Prices(Keeper):
    """Answers calls with ten times their payload; for the second message of each batch, fails."""

    def frame_received(self, link: Link, frame: Frame) -> None:
        super().frame_received(link, frame)
        assert isinstance(frame, Data)
        for batch in frame.batches:
            prices = [10 * each for each in msgspec.msgpack.decode(batch.payloads)]
            reply = Batch(
                target=batch.source,
                source=batch.target,
                first=1,
                kind=Kind.REPLY,
                keys=[],
                payloads=msgspec.Raw(msgspec.msgpack.encode(prices)),
                count=batch.count,
                refs_first=batch.first,
                errors={1: ErrorInfo("rejected", "sold out")},
            )
            ack = Ack(batch.target, batch.source, batch.first + batch.count - 1)
            link.send(Data([reply], [ack]))


async def printed_by(program: str, server: LinkServer, folder: Path) -> str:
    await run(
        "-m", "grpc_tools.protoc", f"-I{ROOT / 'proto'}", f"--python_out={folder}",
        f"--grpc_python_out={folder}", "sublet.proto", cwd=folder,
    )  # fmt: skip
    assert "127.0.0.1:7171" in program
    path = folder / "example.py"
    path.write_text(program.replace("127.0.0.1:7171", server.address))
    return await run(str(path), cwd=folder)


async def run(*arguments: str, cwd: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=cwd, stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(PATIENCE_S):
        output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode()


async def test_the_unary_example_works(tmp_path: Path) -> None:
    async with LinkServer(refusing, Doubling()) as server:
        printed = await printed_by(UNARY, server, tmp_path)

    assert printed == "['anna', {'sku': 'tea', 'n': 2}]\n"


async def test_the_streaming_example_works(tmp_path: Path) -> None:
    keeper = Prices()

    def accept(link: Link, hello: Hello) -> Prices:
        link.send(WELCOME)
        return keeper

    async with LinkServer(accept, NoService()) as server:
        printed = await printed_by(STREAM, server, tmp_path)

    assert printed.splitlines() == [
        "tea 10 None",
        "milk 20 ['rejected', 'sold out', 0]",
        "bread 30 None",
    ]
    assert keeper.ending == ("done", True)
    last = keeper.frames[-1]
    assert isinstance(last, Data)
    assert [(ack.source, ack.upto) for ack in last.acks] == [("shop/price/0", 3)]


def test_the_worked_example_of_the_hash_is_right() -> None:
    slot, partition = slot_of("anna"), partition_index_of("anna", 16)

    assert f"`anna` → slot {slot} → `shop/cart/{partition}`" in PAGE


@pytest.mark.parametrize("code", STATUS_BY_CODE)
def test_every_error_code_is_explained_with_its_status(code: str) -> None:
    row = next(line for line in PAGE.splitlines() if line.startswith("|") and f"`{code}`" in line)

    assert f"| {STATUS_BY_CODE[code].name} |" in row


def refusing(link: Link, hello: Hello) -> Keeper:
    raise AssertionError("no links in this test")
