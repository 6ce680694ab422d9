"""What is asked of a partition for pipelines, and its answers. What is done: `staged_batches`."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec

from sublet.functions.codec import join_column, split_column
from sublet.functions.key_column import PLACE_BYTES, KeyColumn

LOWEST_LEFT_MS = 366 * 24 * 3_600_000
"""As time left, it puts rows after everything else, with or without a deadline."""

MARK_MAX = 1_000
"""Characters of what is said of a pipeline's end."""

Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._:-]{1,100}$")]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Stage(msgspec.Struct, array_like=True, frozen=True, tag="stage"):
    """Keep rows for an attempt. The whole request is what is stored."""

    pipeline: Name
    batch: Number
    attempt: Name
    part: Number
    keys: list[str]
    payloads: msgspec.Raw
    """A msgpack array, one item a row; or, for a function that takes columns, one of Arrow."""
    generation: Number = 0
    """That of the driver. A later one has sealed all that was decided before it: what is staged for
    an earlier one is dropped, or refused."""
    assigns: bool = False
    """The rows are states, not messages: each payload is an `Assignment`. So it is with all rows of
    a pipeline, or with none."""
    places: bytes = b""
    """If given, `keys` are the distinct ones, and these say which row has which: a `KeyColumn`."""

    @property
    def row_count(self) -> int:
        return len(self.places) // PLACE_BYTES if self.places else len(self.keys)

    def row_keys(self) -> list[str]:
        return KeyColumn(self.keys, self.places).to_list() if self.places else self.keys


IfExists = Literal["fail", "overwrite", "keep"]
"""What becomes of a key that has a state when another one is brought: the row is a dead letter, the
state is replaced, or it stays as it is."""
IF_EXISTS: tuple[IfExists, ...] = get_args(IfExists)


class Assignment(msgspec.Struct, array_like=True):
    """The payload of a row that is a state."""

    if_exists: int
    """Its place in `IF_EXISTS`."""
    value: msgspec.Raw


def assignments(values: bytes, if_exists: IfExists) -> bytes:
    """Return a column of payloads that bring states, given as a column of values."""
    head = b"\x92" + bytes((IF_EXISTS.index(if_exists),))
    return join_column([head + bytes(each) for each in split_column(values)])


class Chosen(msgspec.Struct, array_like=True, frozen=True):
    """An attempt that counts, and what it has staged in one partition."""

    attempt: Name
    part_count: Number
    row_count: Number


class Seal(msgspec.Struct, array_like=True, frozen=True, tag="seal"):
    """Let the rows of these attempts be messages; the batch is complete here."""

    pipeline: Name
    batch: Number
    chosen: list[Chosen]
    time_left_ms: Number | None = None
    """When the rows should be done; None: as the function says, once they are in the queue."""


class Decide(msgspec.Struct, array_like=True, frozen=True, tag="decide"):
    """Say what a batch consists of, unless that was said before."""

    pipeline: Name
    batch: Number
    plan: msgspec.Raw
    completed: int = -1
    """The last batch of which the caller knows that it is sealed everywhere."""
    generation: Number = 0
    """After a later one has begun, an earlier one decides nothing."""


class Begin(msgspec.Struct, array_like=True, frozen=True, tag="begin"):
    """Let a new generation decide; the answer is the last decision, with its number."""

    pipeline: Name
    run: Name | None = None
    """Who begins: the latest one begins nothing new, and an earlier one nothing at all."""


class Ask(msgspec.Struct, array_like=True, frozen=True, tag="ask"):
    """How far is the pipeline here?"""

    pipeline: Name


class Drop(msgspec.Struct, array_like=True, frozen=True, tag="drop"):
    """Forget what attempts have staged that will never be sealed."""

    pipeline: Name
    batch: Number
    attempts: list[Name]


class Survey(msgspec.Struct, array_like=True, frozen=True, tag="survey"):
    """Which pipelines are known here? Asked where they are decided, that is all that count."""

    after: str = ""
    """Only names behind this one: an answer has `SURVEY_MAX` at most."""


class Forget(msgspec.Struct, array_like=True, frozen=True, tag="forget"):
    """Nobody will come back under this name: forget what is staged, and how far it was."""

    pipeline: Name


class Describe(msgspec.Struct, array_like=True, frozen=True, tag="describe"):
    """Keep what is to be known of the pipeline, unless something is kept; empty: only ask."""

    pipeline: Name
    text: bytes = b""
    generation: Number = 0
    """If given, what is kept is replaced, unless the pipeline is complete or a later one has begun:
    what an earlier driver knows is not what the later one goes on with."""


class Complete(msgspec.Struct, array_like=True, frozen=True, tag="complete"):
    """Nothing more is to come, and all that has come was taken; said once."""

    pipeline: Name
    mark: Annotated[str, msgspec.Meta(max_length=MARK_MAX)] = ""
    """Where it ends, for whoever goes on from there."""
    generation: Number = 0
    """If given, it is complete only if no later one has begun, which may have more to bring."""


Request = Stage | Seal | Decide | Begin | Ask | Drop | Forget | Describe | Complete
"""What is asked of one pipeline."""


class Decision(msgspec.Struct, array_like=True, tag="decision"):
    """What is stored where a pipeline's batches are decided; the answer to `Decide` and `Begin`.

    If its batch is an earlier one than was asked for, that one has to be sealed everywhere first;
    if it is a later one, the batch that was asked for was done long ago.
    """

    batch: int = -1
    """-1: nothing was decided yet."""
    plan: msgspec.Raw = msgspec.Raw(b"\xc0")
    generation: int = 0
    runs: list[str] = []
    """Those that have begun, the latest last."""


class Description(msgspec.Struct, array_like=True, tag="description"):
    """What is kept beside a pipeline, where it is decided; the answer to `Describe` and
    `Complete`."""

    text: bytes = b""
    completed_ms: int | None = None
    """When it was said to be complete, on the partition's clock."""
    mark: str = ""


class Progress(msgspec.Struct, array_like=True):
    """The answer to everything else."""

    sealed: int
    """The last batch that is sealed here; -1: none."""
    rows_waiting: int = 0
    """Sealed, and in parts of which not all is taken; or taken, and never run since."""
    rows_staged: int = 0
    """Not sealed."""
    rows_dead: int = 0
    """Those that have become dead letters."""


class KnownPipeline(msgspec.Struct, array_like=True, frozen=True):
    """One that a partition knows."""

    name: str
    decided: int
    """The last batch that was decided here; -1: none."""
    completed_ms: int | None
    mark: str


class Surveyed(msgspec.Struct, array_like=True, frozen=True):
    """The answer to `Survey`."""

    pipelines: list[KnownPipeline]
    """By name."""
