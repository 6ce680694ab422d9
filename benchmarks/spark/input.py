"""What Spark reads in the measurements, the same for everybody: files of rows, and a paced line.

Files are Parquet, made from a seed; one micro-batch reads as many of them as there are tasks, so
that every system splits its work alike. The paced line is a socket on which keys arrive at a fixed
rate, one a line, whether or not anyone keeps up: Spark's own socket source reads it in the JVM, and
adds next to nothing. Run as a program this module is its sender.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import socket
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.processes import Child, exit_on_terminate
from benchmarks.harness.workload import KEY_SEQUENCE_LENGTH, SEED, ArrivalSchedule, zipf_keys

FILES_MADE_MAX = 4
"""Distinct files of one shape; more batches read them again under other names."""
TICK_S = 0.005
EARLY_S = 0.1
EARLY_KEYS = 100
CONNECT_WAIT_S = 60.0
LINE_WAIT_S = 10.0


@dataclass(frozen=True)
class Shape:
    """How wide a row is: columns in all, and about how many bytes they hold."""

    columns: int = 2
    row_bytes: int = 20

    def __post_init__(self) -> None:
        if not 2 <= self.columns <= 200 or not 20 <= self.row_bytes <= 10_000:
            raise ValueError(
                f"{self.columns} columns of {self.row_bytes} bytes; allowed: 2..200 columns, "
                "20..10,000 bytes"
            )

    @property
    def schema(self) -> str:
        """As Spark is told."""
        texts = [f"c{number} string" for number in range(2, self.columns)]
        padding = ["padding string"] if self.has_padding else []
        return ", ".join(["key string", "n long", *texts, *padding])

    @property
    def has_padding(self) -> bool:
        """Two columns cannot hold many bytes: a third, which is padding, does."""
        return self.columns == 2 and self.row_bytes > 20

    def __str__(self) -> str:
        return f"{self.columns} columns, {self.row_bytes:,} B"


class InputFiles:
    """Makes folders of files below one folder, each for one stream."""

    def __init__(self, folder: Path, files_a_batch: int) -> None:
        self._folder = folder
        self.files_a_batch = files_a_batch
        self._streams = 0

    def stream(self, shape: Shape, batch_rows: int, batches: int) -> Path:
        """Return a folder that holds so many batches, in the order in which Spark reads them."""
        made = self._made(shape, batch_rows)
        self._streams += 1
        folder = self._folder / f"stream-{self._streams}"
        folder.mkdir()
        # Spark reads the oldest first, by the millisecond; links share their file's age, and then
        # the order is that of no one: all batches have as many rows, so that it does not matter.
        for number in range(batches * self.files_a_batch):
            os.link(made[number % len(made)], folder / f"{number:05d}.parquet")
        return folder

    def _made(self, shape: Shape, batch_rows: int) -> list[Path]:
        folder = self._folder / f"rows-{shape.columns}-{shape.row_bytes}-{batch_rows}"
        rows = max(1, batch_rows // self.files_a_batch)
        if not folder.exists():
            folder.mkdir()
            for number in range(FILES_MADE_MAX):
                _write(folder / f"{number}.parquet", shape, rows, number)
        return sorted(folder.iterdir())


_keys: list[str] = []


def _write(path: Path, shape: Shape, rows: int, number: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as parquet

    if not _keys:
        _keys.extend(zipf_keys())
    chance = random.Random(SEED + number)
    start = chance.randrange(KEY_SEQUENCE_LENGTH)
    keys = (_keys[start:] + _keys * (1 + rows // KEY_SEQUENCE_LENGTH))[:rows]
    columns: dict[str, object] = {"key": keys, "n": pa.array([1] * rows, pa.int64())}
    texts = shape.columns - 2 or int(shape.has_padding)
    if texts:
        size = max(1, (shape.row_bytes - 16) // texts)
        # A few values a column, so that they are soon made; encoding none of them by dictionary
        # makes reading cost what such rows cost.
        values = [chance.randbytes(size // 2 + 1).hex()[:size] for _ in range(97)]
        for place in range(texts):
            name = "padding" if shape.has_padding else f"c{place + 2}"
            columns[name] = [values[(row + place) % 97] for row in range(rows)]
    parquet.write_table(pa.table(columns), path, use_dictionary=["key"])


# The paced line


class PacedLine:
    """A process that sends keys to whoever connects; `port` says where. Leaving ends it."""

    def __init__(self, rate_per_s: int, seconds: float, prefix: str) -> None:
        self.keys = paced_keys(int(rate_per_s * seconds), prefix)
        self.rate_per_s = rate_per_s
        command = [sys.executable, "-m", "benchmarks.spark.input", str(rate_per_s), str(seconds)]
        self._child = Child([*command, prefix])
        self.port = int(self._line(LINE_WAIT_S)["port"])

    def begin(self) -> ArrivalSchedule:
        """Let the keys arrive from now on; return when each is due, in Unix time.

        Until then, once someone has connected, a few others arrive: whoever reads them is not to be
        timed while it starts up.
        """
        self._child.write_line("begin")
        start_s = float(self._line(CONNECT_WAIT_S)["start_s"])
        return ArrivalSchedule(self.rate_per_s, start_s, len(self.keys))

    def _line(self, wait_s: float) -> dict[str, float]:
        line = self._child.read_line(wait_s)
        if line is None:
            raise RuntimeError("the sender of keys has ended")
        found: dict[str, float] = json.loads(line)
        return found

    def __enter__(self) -> PacedLine:
        return self

    def __exit__(self, *_: object) -> None:
        self._child.stop()


class Arrivals:
    """When which count of which key was seen; from that, when which event was."""

    def __init__(self, keys: Sequence[str]) -> None:
        """Of a key, so many events are expected as it is named."""
        self._keys = keys
        self._known = frozenset(keys)
        self._seen: list[tuple[float, list[str], list[int]]] = []
        self._counts: dict[str, int] = {}

    def seen(self, keys: list[str], counts: list[int]) -> None:
        self._seen.append((time.time(), keys, counts))
        for key, count in zip(keys, counts, strict=True):
            if key in self._known:
                self._counts[key] = max(count, self._counts.get(key, 0))

    @property
    def is_complete(self) -> bool:
        return sum(self._counts.copy().values()) >= len(self._keys)

    def events(self) -> Iterator[tuple[int, float]]:
        """Yield (event, when it was visible): the n-th of a key is when a count of n or more is."""
        waiting: dict[str, list[int]] = defaultdict(list)
        for index, key in enumerate(self._keys):
            waiting[key].append(index)
        reached: dict[str, int] = defaultdict(int)
        for now_s, some, counts in self._seen:
            for key, count in zip(some, counts, strict=True):
                for index in waiting.get(key, [])[reached[key] : count]:
                    yield index, now_s
                reached[key] = max(reached[key], count)


def paced_keys(count: int, prefix: str) -> list[str]:
    """Return the keys that a line carries; those of two prefixes have nothing in common."""
    keys = zipf_keys(min(count, KEY_SEQUENCE_LENGTH))
    return [prefix + keys[index % len(keys)] for index in range(count)]


def send(rate_per_s: int, seconds: float, prefix: str) -> None:
    """Serve one connection; stay until standard input ends, as the reader takes an end for news."""
    keys = paced_keys(int(rate_per_s * seconds), prefix)
    lines = [f"{key}\n".encode() for key in keys]
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(json.dumps({"port": server.getsockname()[1]}), flush=True)
        server.settimeout(CONNECT_WAIT_S)
        connection, _ = server.accept()
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            early = "".join(f"{prefix}early{number}\n" for number in range(EARLY_KEYS)).encode()
            while not select.select([sys.stdin], [], [], EARLY_S)[0]:
                connection.sendall(early)
            sys.stdin.readline()
            schedule = ArrivalSchedule(rate_per_s, time.time() + 0.1, len(lines))
            print(json.dumps({"start_s": schedule.start_s}), flush=True)
            sent = 0
            while sent < len(lines):
                due = schedule.due_count(time.time())
                if due > sent:
                    connection.sendall(b"".join(lines[sent:due]))
                    sent = due
                time.sleep(TICK_S)
            sys.stdin.read()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rate_per_s", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("prefix")
    options = parser.parse_args()
    exit_on_terminate()
    send(options.rate_per_s, options.seconds, options.prefix)


if __name__ == "__main__":
    main()
