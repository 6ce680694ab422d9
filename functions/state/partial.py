"""States that are gathered in parts: empty cells for handlers that only add, and how what they
hold is put into the real state later, elsewhere.

Nobody who runs in parts knows the state. So whatever would tell of it is refused with
`ReadsStateError`, and the message has to be run where the state is. Refused are reading, using
what `add` or `offer` tell, and additions that fail, because whether they do may depend on the
state.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from sublet.functions.codec import Codec, codec_for
from sublet.functions.errors import HandlerError, ReadsStateError, SubletError
from sublet.functions.state.cell import (
    Cell,
    ChangedRow,
    MergeableKind,
    StateClock,
    StateKind,
    StoredRow,
    Undo,
)
from sublet.functions.state.fields import FieldsState, MergeableFields, mergeable_kind_of
from sublet.functions.state.mergeable import Count, Max, Mean, Merged, Min, SetUnion, Sum
from sublet.functions.state.sketches import Quantiles, TopK
from sublet.functions.state.windowed import (
    WINDOW_OVERHEAD_BYTES,
    NoWindowState,
    OpenWindow,
    Windowed,
    WindowedState,
)

if TYPE_CHECKING:
    from sublet.functions.app import Function

_KINDS_MAX = 1024
"""Of so many kinds it is remembered how their parts travel."""

PartialWindow = tuple[int, int, bytes]
"""(start_ms, end_ms, partial value) of a window."""


def is_mergeable(kind: StateKind) -> bool:
    """Tell whether a state of this kind, in windows or not, can be gathered in parts."""
    return _parts(kind) is not None


def runs_in_parts(function: Function) -> bool:
    """Tell whether messages of a function can be run in parts at all.

    Only those of a function that has given up the order: one that reads must not be passed by
    later ones that add. Not those that get whole batches: one of them that reads would send all of
    them home.
    """
    kind = function.state_kind
    keyed = function.kind == "keyed" and not function.takes_batch
    return keyed and function.order == "none" and kind is not None and is_mergeable(kind)


def partial_cell(kind: StateKind, clock: StateClock) -> Cell:
    """Return an empty state to which a handler can add, and do nothing else."""
    mergeable = _known_parts(kind).kind
    if isinstance(kind, Windowed):
        return PartialWindows(kind, clock)
    return _add_only(mergeable, mergeable.cell((), clock))


def partial_value(kind: StateKind, cell: Cell) -> bytes:
    """Return what was added to a settled partial cell, as msgpack.

    `ReadsStateError` if a handler kept a refusal to itself: nobody knows what it did instead, so
    all messages of the key have to be run elsewhere.
    """
    parts = _known_parts(kind)
    _check_told(cell)
    return parts.codec.encode(_added(parts.kind, cell))


def partial_windows(kind: StateKind, cell: Cell) -> list[PartialWindow]:
    """Return what was added in each window, for `WindowRuns.absorb_window`.

    `ReadsStateError` as in `partial_value`.
    """
    parts = _known_parts(kind)
    assert isinstance(cell, PartialWindows)
    _check_told(cell)
    encode, partial_of = parts.codec.encode, parts.kind.partial_of
    return [(each.start_ms, each.end_ms, encode(partial_of(each.cell))) for each in cell]


def absorb(kind: StateKind, cell: Cell, value: bytes) -> None:
    """Merge what `partial_value` returned into a real cell; the caller settles it.

    Fails with a `SubletError`, as adding does, such as `StateTooLargeError`, or `HandlerError` if
    the user's own merge function raised: the caller rolls the cell back then.
    """
    parts = _known_parts(kind)
    with merge_failures():
        parts.kind.absorb(cell, parts.codec.decode(value))


@contextmanager
def merge_failures() -> Iterator[None]:
    """Make `HandlerError` of whatever a user's merge function raises."""
    try:
        yield
    except SubletError:
        raise
    except Exception as error:
        raise HandlerError(f"merging raised {type(error).__name__}: {error}") from error


def has_refused(cell: Cell) -> bool:
    """Tell whether a partial cell has refused something since it was last rolled back.

    After a handler that did not fail: that it has caught the refusal.
    """
    if isinstance(cell, AddOnly):
        return cell._refused
    if isinstance(cell, FieldsState):
        return any(map(has_refused, cell._cells.values()))
    return isinstance(cell, PartialWindows) and cell.has_refused()


def _check_told(cell: Cell) -> None:
    if has_refused(cell):
        raise ReadsStateError("a handler suppressed the error of a refused operation")


class _Parts(NamedTuple):
    """How parts of one kind are put together, and how they travel."""

    kind: MergeableKind[Any]
    codec: Codec[Any]


def _parts(kind: StateKind) -> _Parts | None:
    # Only kinds that others have written cannot be hashed.
    return _find_parts(kind) if isinstance(kind, Hashable) else None


@lru_cache(maxsize=_KINDS_MAX)
def _find_parts(kind: StateKind) -> _Parts | None:
    mergeable = mergeable_kind_of(kind.kind if isinstance(kind, Windowed) else kind)
    if mergeable is None or not _adds_known(mergeable):
        return None
    return _Parts(mergeable, codec_for(mergeable.partial_type))


def _known_parts(kind: StateKind) -> _Parts:
    parts = _parts(kind)
    if parts is None:
        raise TypeError(f"a state of kind {kind!r} cannot be gathered in parts")
    return parts


# Cells


class AddOnly:
    """Stands before a cell. The classes made from it have the methods that add.

    Whatever else there is to ask for is refused; what the runtime and every cell agree on is not.
    """

    __slots__ = ("_cell", "_refused")

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self._refused = False

    @property
    def undo(self) -> Undo:
        """See `Cell.undo`."""
        return self._cell.undo

    def rollback(self) -> None:
        """See `Cell.rollback`."""
        self._cell.rollback()
        self._refused = False

    def drain(self) -> list[ChangedRow]:
        """See `Cell.drain`. What is gathered in parts is not stored before it is merged."""
        return []

    def rows(self) -> list[StoredRow]:
        """See `Cell.rows`."""
        return self._cell.rows()

    @property
    def size_bytes(self) -> int:
        """See `Cell.size_bytes`."""
        return self._cell.size_bytes

    @property
    def is_empty(self) -> bool:
        """See `Cell.is_empty`."""
        return self._cell.is_empty

    def _refuse(self, what: str) -> NoReturn:
        self._refused = True
        raise ReadsStateError(what)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)  # Python's own questions, such as those of copy()
        self._refuse(name)

    def __len__(self) -> int:
        self._refuse("len")

    def __bool__(self) -> bool:
        self._refuse("bool")

    def __iter__(self) -> Any:
        self._refuse("iter")

    def __contains__(self, item: object) -> bool:
        self._refuse("in")

    def __getitem__(self, item: object) -> Any:
        self._refuse("[]")


class Unknown:
    """Stands for what only the owner of a state knows. It may be ignored, and nothing else."""

    __slots__ = ("_cell",)

    def __init__(self, cell: AddOnly | PartialWindows) -> None:
        self._cell = cell

    def __getattr__(self, name: str) -> Any:
        self._cell._refuse(f"what is told of it: {name}")


def _refuse_use(self: Unknown, *_: object) -> NoReturn:
    self._cell._refuse("what is told of it")


_USES = "bool eq ne hash lt le gt ge int index float str repr format iter len getitem contains"
for _name in [*_USES.split(), "add", "radd", "and", "rand", "or", "ror", "invert"]:
    setattr(Unknown, f"__{_name}__", _refuse_use)


def _adder(name: str, *, tells: bool) -> Callable[..., Any]:
    def add(self: AddOnly, *args: Any, **kwargs: Any) -> Any:
        try:
            getattr(self._cell, name)(*args, **kwargs)
        except Exception as error:  # a user's merge function may raise anything
            self._refused = True
            raise ReadsStateError(f"{name} failed: {error}") from error
        return Unknown(self) if tells else None

    add.__name__ = name
    return add


def _add_only_class(*adders: str, tells: bool = False) -> type[AddOnly]:
    methods: dict[str, Any] = {name: _adder(name, tells=tells) for name in adders}
    return type("AddOnly", (AddOnly,), {"__slots__": (), **methods})


_EXTREME = _add_only_class("offer", tells=True)
_CLASSES: dict[type, type[AddOnly]] = {
    Sum: _add_only_class("add"),
    Count: _add_only_class("increment"),
    Mean: _add_only_class("add", "add_many"),
    Min: _EXTREME,
    Max: _EXTREME,
    SetUnion: _add_only_class("add", tells=True),
    Merged: _add_only_class("merge"),
    TopK: _add_only_class("add"),
    Quantiles: _add_only_class("add", "add_to_bin"),
    NoWindowState: _add_only_class(),
}
"""For each mergeable kind, the methods of its cells that only add. Of kinds that others have
written nobody knows them."""


def _adds_known(kind: MergeableKind[Any]) -> bool:
    if isinstance(kind, MergeableFields):
        return all(map(_adds_known, kind.kinds.values()))
    return type(kind) in _CLASSES


def _add_only(kind: MergeableKind[Any], cell: Cell) -> Cell:
    """Return what a handler is given instead of a cell."""
    if isinstance(kind, MergeableFields):
        return kind.state_of(
            {name: _add_only(each, getattr(cell, name)) for name, each in kind.kinds.items()}
        )
    return _CLASSES[type(kind)](cell)


def _added(kind: MergeableKind[Any], cell: Any) -> Any:
    """Return what the cell behind one that only adds holds."""
    if isinstance(kind, MergeableFields):
        return {name: _added(each, getattr(cell, name)) for name, each in kind.kinds.items()}
    return kind.partial_of(cell._cell)


# Windows


class PartialWindows(WindowedState):
    """The windows of a key as far as they are gathered in parts; none at first.

    `WindowRuns` lets no message into it that would find a window closed.
    """

    __slots__ = ("_given", "_mergeable", "_opened", "_refused", "unknown_window")

    def __init__(self, kind: Windowed, clock: StateClock) -> None:
        super().__init__(kind, (), clock)
        self._mergeable = _known_parts(kind).kind
        self._given: dict[int, tuple[Cell, Cell]] = {}
        """By start, the state of a window and what a handler got instead."""
        self._opened = 0
        self._refused = False
        self.unknown_window: Any = Unknown(self)
        """Stands for a session's bounds."""

    def use(self, window: OpenWindow) -> Cell:
        """Return what a handler may add to, in this window."""
        given = self._given.get(window.start_ms)
        if given is None or given[0] is not window.cell:
            given = window.cell, _add_only(self._mergeable, window.cell)
            self._given[window.start_ms] = given
        self._used.append((window.start_ms, given[1]))
        return given[1]

    def put(self, window: OpenWindow) -> None:
        """See `WindowedState.put`. How many windows there really are is not known."""
        if window.start_ms not in self._windows and len(self) >= self._kind.open_max:
            raise ReadsStateError("another open window")
        super().put(window)

    def drain(self) -> list[ChangedRow]:
        """See `Cell.drain`. What is gathered in parts is not stored before it is merged."""
        return []

    @property
    def size_bytes(self) -> int:
        """See `Cell.size_bytes`."""
        return sum(each.cell.size_bytes + WINDOW_OVERHEAD_BYTES for each in self)

    def rollback(self) -> None:
        """See `Cell.rollback`."""
        super().rollback()
        self._refused = False

    def has_refused(self) -> bool:
        """See `partial.has_refused`."""
        return self._refused or any(has_refused(cell) for _, cell in self._given.values())

    def _refuse(self, what: str) -> NoReturn:
        self._refused = True
        raise ReadsStateError(what)

    def next_timer(self) -> str:
        """Return a name for a window's timer; only the owner sets real ones."""
        self._opened += 1
        return f"~{self._opened}"
