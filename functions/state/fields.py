"""Several named states in one, and the turning of declarations into kinds.

Stored form: the rows of each field, with the field's name and a zero byte before their subkeys.
Rows of a field that is no longer declared stay where they are, unseen.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, ClassVar, TypedDict

from sublet.functions.errors import StateTypeError
from sublet.functions.state.cell import (
    Cell,
    ChangedRow,
    MergeableKind,
    StateClock,
    StateKind,
    StoredRow,
)
from sublet.functions.state.kind import Kind
from sublet.functions.state.value import Value

_SEPARATOR = b"\0"
_KINDS_PACKAGE = "sublet.functions.state"
# Names that a cell needs for itself.
_RESERVED = ("undo", "rollback", "drain", "rows", "size_bytes", "is_empty")


class Fields(Kind):
    """Several states under one key, without a class: `state=Fields(cart=Value(Cart))`, or the same
    as a dict. Type checkers know the fields of a `State` class, not these.

    Each field is stored, and changes, on its own, and has the bound of a key's state to itself.
    """

    __slots__ = ("_state_class", "kinds")

    says_all = False

    def __init__(self, **declarations: Any) -> None:
        if not declarations:
            raise ValueError("Fields() needs at least one field, such as cart=Value(Cart)")
        for name in declarations:
            if not name.isidentifier() or name.startswith("_") or name in _RESERVED:
                raise ValueError(
                    f"a state field cannot be named {name!r}; allowed: an identifier that does not "
                    f"start with an underscore and is none of {', '.join(_RESERVED)}"
                )
        self.kinds = {name: state_kind_of(each) for name, each in declarations.items()}
        # A class of its own, so that each field is an attribute and a wrong name an error.
        self._state_class: type[FieldsState] = type(
            "FieldsState", (FieldsState,), {"__slots__": tuple(self.kinds)}
        )

    @classmethod
    def of_class(cls, state_class: type[State], declarations: dict[str, Any]) -> Fields:
        """Return the kind whose cells are instances of a `State` class."""
        fields = cls(**declarations)
        fields._state_class = state_class
        return fields

    @property
    def context_type(self) -> Any:
        """See `Kind.context_type`; anything, if there is no class for it."""
        return self._state_class if issubclass(self._state_class, State) else Any

    def __repr__(self) -> str:
        if issubclass(self._state_class, State):
            return self._state_class.__name__
        return f"Fields({', '.join(f'{name}={kind!r}' for name, kind in self.kinds.items())})"

    def cell(self, rows: Iterable[StoredRow], clock: StateClock) -> FieldsState:
        """See `StateKind.cell`."""
        by_name: dict[bytes, list[StoredRow]] = {}
        for subkey, value, expires_ms in rows:
            prefix, separator, rest = subkey.partition(_SEPARATOR)
            if not separator:
                raise StateTypeError("the stored state has no fields: it was written without them")
            by_name.setdefault(prefix, []).append((rest, value, expires_ms))
        cells = {}
        for name, kind in self.kinds.items():
            try:
                cells[name] = kind.cell(by_name.get(name.encode(), ()), clock)
            except StateTypeError as error:
                raise StateTypeError(f"field {name}: {error}") from error
        return self.state_of(cells)

    def state_of(self, cells: dict[str, Cell]) -> FieldsState:
        """Return the state that consists of these cells, one for each field."""
        return self._state_class(cells)


class FieldsUndo:
    """Sees the undo of all fields as one."""

    __slots__ = ("_cells",)

    def __init__(self, cells: Iterable[Cell]) -> None:
        self._cells = tuple(cells)

    def __len__(self) -> int:
        return sum(1 for cell in self._cells if cell.undo)

    def clear(self) -> None:
        """Settle all fields."""
        for cell in self._cells:
            if cell.undo:
                cell.undo.clear()


class FieldsState:
    """`ctx.state` of a function with `state=Fields(…)`: one attribute for each field."""

    __slots__ = ("_cells", "undo")

    _cells: dict[str, Cell]
    undo: FieldsUndo

    def __init__(self, cells: dict[str, Cell]) -> None:
        assign = object.__setattr__
        assign(self, "_cells", cells)
        assign(self, "undo", FieldsUndo(cells.values()))
        for name, cell in cells.items():
            assign(self, name, cell)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(
            f"cannot assign to a field; use its own methods, such as ctx.state.{name}.set(…)"
        )

    def rollback(self) -> None:
        """See `Cell.rollback`."""
        for cell in self._cells.values():
            cell.rollback()

    def drain(self) -> list[ChangedRow]:
        """See `Cell.drain`."""
        changed: list[ChangedRow] = []
        for name, cell in self._cells.items():
            rows = cell.drain()
            if rows:
                prefix = name.encode() + _SEPARATOR
                changed.extend((prefix + subkey, value, end) for subkey, value, end in rows)
        return changed

    def rows(self) -> list[StoredRow]:
        """See `Cell.rows`."""
        found: list[StoredRow] = []
        for name, cell in self._cells.items():
            prefix = name.encode() + _SEPARATOR
            found.extend((prefix + subkey, value, end) for subkey, value, end in cell.rows())
        return found

    @property
    def size_bytes(self) -> int:
        """See `Cell.size_bytes`."""
        return sum(cell.size_bytes for cell in self._cells.values())

    @property
    def is_empty(self) -> bool:
        """See `Cell.is_empty`."""
        return all(cell.is_empty for cell in self._cells.values())


class State(FieldsState):
    """Several states under one key, each a field of a class of your own:

        class Account(State):
            balance = Sum()
            owners = SetUnion(str)
            address = Value(Address)

    Name the class in `Context[Account]`; the handler finds `ctx.state.balance`, `ctx.state.owners`
    and `ctx.state.address`, each with the methods of its kind. The class may have methods, too.

    Each field is stored, and changes, on its own, and has the bound of a key's state to itself.
    """

    __slots__ = ()

    _kind: ClassVar[Fields | None] = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        declarations: dict[str, Any] = {}
        for each in reversed(cls.__mro__):
            for name, value in vars(each).items():
                declarations.pop(name, None)
                if _is_kind(value) and name != "_kind":
                    declarations[name] = value
                elif isinstance(value, type) and not name.startswith("_"):
                    raise TypeError(
                        f"{cls.__name__}.{name} is a type; write {name} = Value({value.__name__})"
                    )
        for name, annotation in inspect.get_annotations(cls).items():
            if name not in vars(cls) and "ClassVar" not in str(annotation):
                raise TypeError(
                    f"{cls.__name__}.{name} has a type but no kind; write {name} = Value(…), "
                    f"{name} = Sum() or the like"
                )
        cls._kind = Fields.of_class(cls, declarations) if declarations else None


def _is_kind(declaration: object) -> bool:
    return not isinstance(declaration, type) and callable(getattr(declaration, "cell", None))


def state_kind_of(declaration: Any) -> StateKind:
    """Return the kind that a `state=` declaration means.

    A kind is itself, a `State` class is its fields, another type T is `Value(T)`, a dict is
    `Fields`, and None is a state of any type that the first `ctx.state.get(T)` decides.
    `TypeError` for a type that cannot be stored.
    """
    if declaration is None:
        return Value.undeclared()
    if isinstance(declaration, type) and issubclass(declaration, State):
        if declaration._kind is None:
            raise TypeError(f"{declaration.__name__} has no fields; give it one: total = Sum()")
        return declaration._kind
    if isinstance(declaration, dict):
        if not all(isinstance(name, str) for name in declaration):
            raise TypeError("the names of state fields must be strings")
        return Fields(**declaration)
    if isinstance(declaration, type) and declaration.__module__.startswith(_KINDS_PACKAGE):
        raise TypeError(
            f"state={declaration.__name__} is a kind of state without its type or arguments; "
            f"write state={declaration.__name__}(…)"
        )
    if _is_kind(declaration):
        return declaration  # type: ignore[no-any-return]  # it has what the protocol asks for
    return Value(declaration)


class MergeableFields:
    """`Fields` of which every field is mergeable. A partial value is a dict by field name."""

    __slots__ = ("_fields", "kinds", "partial_type")

    def __init__(self, fields: Fields, kinds: dict[str, MergeableKind[Any]]) -> None:
        self._fields = fields
        self.kinds = kinds
        # mypy knows TypedDicts only by sight; this one has the names that the user chose.
        make_type: Any = TypedDict
        self.partial_type = make_type(
            "FieldsPartial", {name: kind.partial_type for name, kind in kinds.items()}
        )

    def cell(self, rows: Iterable[StoredRow], clock: StateClock) -> FieldsState:
        """See `StateKind.cell`."""
        return self._fields.cell(rows, clock)

    def state_of(self, cells: dict[str, Cell]) -> FieldsState:
        """Return a state that consists of these cells."""
        return self._fields.state_of(cells)

    def zero(self) -> dict[str, Any]:
        """Return the zero of each field."""
        return {name: kind.zero() for name, kind in self.kinds.items()}

    def merge(self, one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        """Merge field by field."""
        return {name: kind.merge(one[name], other[name]) for name, kind in self.kinds.items()}

    def partial_of(self, cell: FieldsState) -> dict[str, Any]:
        """See `MergeableKind.partial_of`."""
        return {name: kind.partial_of(getattr(cell, name)) for name, kind in self.kinds.items()}

    def absorb(self, cell: FieldsState, partial: dict[str, Any]) -> None:
        """See `MergeableKind.absorb`."""
        for name, kind in self.kinds.items():
            kind.absorb(getattr(cell, name), partial[name])


def mergeable_kind_of(kind: StateKind) -> MergeableKind[Any] | None:
    """Return the kind as one that can be merged; None if it cannot.

    Fields can if each of them can.
    """
    if isinstance(kind, Fields):
        kinds: dict[str, MergeableKind[Any]] = {}
        for name, each in kind.kinds.items():
            mergeable = mergeable_kind_of(each)
            if mergeable is None:
                return None
            kinds[name] = mergeable
        return MergeableFields(kind, kinds)
    if callable(getattr(kind, "absorb", None)):
        return kind  # type: ignore[return-value]  # it has what the protocol asks for
    return None
