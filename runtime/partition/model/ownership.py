"""Who owns a partition, as the store and everybody who hears from it know."""

from __future__ import annotations


class Ownership:
    """One owner's time with a partition, from its acquisition on."""

    __slots__ = ("_mark", "epoch", "partition", "token")

    def __init__(self, partition: str, epoch: int, token: str = "") -> None:
        self.partition = partition
        self.epoch = epoch
        self.token = token
        """Tells this acquisition from others of the same epoch, where a store may go back to older
        data; empty where none does."""
        self._mark = token.encode()

    @property
    def store_forgets(self) -> bool:
        """Tell whether what the store has said to be stored may be gone later."""
        return self.token != ""

    def commit_id(self, index: int) -> bytes:
        return b"%d.%d%b" % (self.epoch, index, self._mark)
