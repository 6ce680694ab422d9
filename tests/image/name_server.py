"""A name server for the containers of a test, which knows what a file of names and addresses says.

    python -m tests.image.name_server names.json

Names come and go with containers, at once. Podman's own name server asks the machine's for names
that it does not know, which nobody answers in a namespace without a way out; and there is but one
for all Podmans of a machine.
"""

from __future__ import annotations

import ipaddress
import json
import socket
import sys
from pathlib import Path

PORT = 53
DATAGRAM_BYTES_MAX = 4_096
HEADER_BYTES = 12
TTL_S = 1
TYPE_A = 1
CLASS_IN = 1
# Of the second word of a header: an answer by who knows, without error or "no such name".
FOUND = 0x8580
NO_SUCH_NAME = 0x8583


def answer(query: bytes, addresses: dict[str, str]) -> bytes:
    """Return the answer to a query, which is empty if the query makes no sense.

    A name that is known has an address of IPv4, and of no other kind.
    """
    labels, end = [], HEADER_BYTES
    while end < len(query) and (length := query[end]):
        labels.append(query[end + 1 : end + 1 + length].decode("latin-1").lower())
        end += 1 + length
    question = query[HEADER_BYTES : end + 5]
    if len(question) < 5 or len(query) < end + 5:
        return b""
    address = addresses.get(".".join(labels))
    flags = NO_SUCH_NAME if address is None else FOUND
    record = b""
    if address is not None and int.from_bytes(question[-4:-2]) == TYPE_A:
        # 0xC00C: the name in the question.
        record = b"\xc0\x0c" + TYPE_A.to_bytes(2) + CLASS_IN.to_bytes(2) + TTL_S.to_bytes(4)
        record += (4).to_bytes(2) + ipaddress.IPv4Address(address).packed
    counts = (1, 1 if record else 0, 0, 0)
    header = query[:2] + b"".join(each.to_bytes(2) for each in (flags, *counts))
    return header + question + record


def serve(path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("0.0.0.0", PORT))
        while True:
            query, peer = server.recvfrom(DATAGRAM_BYTES_MAX)
            if reply := answer(query, json.loads(path.read_text())):
                server.sendto(reply, peer)


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
