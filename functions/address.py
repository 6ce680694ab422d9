"""Where a key lives: the words and the arithmetic that every part agrees on.

The same hash can be computed elsewhere (Spark's `xxhash64`, any xxHash library with seed 42),
so a sender needs no help to find the partition of a key.
"""

from __future__ import annotations

from typing import NamedTuple

from xxhash import xxh64_intdigest

SLOT_COUNT = 1024
HASH_SEED = 42
PARTITION_COUNT_DEFAULT = 16


class Address(NamedTuple):
    """Names one instance: a function and the key whose state it owns."""

    function: str
    key: str

    def __str__(self) -> str:
        return f"{self.function}[{self.key}]"


def slot_of(key: str) -> int:
    """Return the fixed virtual node of a key; it never changes when partitions move."""
    return xxh64_intdigest(key.encode(), HASH_SEED) % SLOT_COUNT


def partition_index_of(key: str, partition_count: int) -> int:
    """Return which of a function's partitions holds a key (partitions are ranges of slots)."""
    return slot_of(key) * partition_count // SLOT_COUNT


def is_placed_by_key(kind: str, key: str) -> bool:
    """Tell whether a message of a function of this kind must go to the partition of its key.

    Others may go to any partition. One with an idempotency key goes to the partition of that
    instead (`partition_index_of`): answers are kept by partition, so that all who repeat a request
    must choose the same one.
    """
    return kind == "keyed" or (kind == "stateful" and key != "")


def partition_name(function: str, index: int) -> str:
    """Return the name by which partitions are known on the wire and in stores: `app/name/3`."""
    return f"{function}/{index}"


def partition_names(function: str, count: int) -> list[str]:
    return [partition_name(function, index) for index in range(count)]


def split_partition_name(name: str) -> tuple[str, int]:
    """Return the function and the index of a partition's name."""
    function, _, index = name.rpartition("/")
    return function, int(index)


# Clients are endpoints of channels, like partitions. The mark keeps the two kinds of names apart.
CLIENT_MARK = "~"
# So are the pipelines of a partition, which it feeds to itself: nobody else hears of them.
PIPELINE_MARK = "|"


# And instances, which serve the leases of one worker and do nothing else.
INSTANCE_MARK = "+"


def is_client(endpoint: str) -> bool:
    return endpoint.startswith(CLIENT_MARK)


def is_instance(endpoint: str) -> bool:
    return endpoint.startswith(INSTANCE_MARK)


def is_pipeline(endpoint: str) -> bool:
    return endpoint.startswith(PIPELINE_MARK)
