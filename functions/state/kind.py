"""What all kinds of state that a function can declare have in common, for type checkers above all.

A kind stands in three places: `state=Map(str, int)` declares it, `Context[Map[str, int]]` names it,
and in the body of a `State` class it is a field. `ctx.state` is then what its `cell` returns.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar, overload

from sublet.functions.state.cell import StateClock, StoredRow

C_co = TypeVar("C_co", covariant=True)
S_co = TypeVar("S_co", covariant=True)
V_co = TypeVar("V_co", covariant=True)
C = TypeVar("C")


class HasCell(Protocol[C_co]):
    """A kind, by what handlers find as `ctx.state`."""

    def cell(self, rows: Iterable[StoredRow], clock: StateClock) -> C_co: ...


class HasPlain(Protocol[V_co]):
    """A kind, by the plain value that a test reads its states as."""

    def plain(self, cell: Any) -> V_co: ...


class Declares(Protocol[S_co]):
    """A kind, by what stands in `Context[…]` for it."""

    @property
    def context_type(self) -> type[S_co]: ...


class Kind:
    """A kind of state; each is declared by an object of its own class."""

    __slots__ = ()

    says_all: ClassVar[bool] = True
    """`Context[…]` with its type arguments is enough to declare it; otherwise it needs `state=`."""

    @property
    def context_type(self) -> type[Self]:
        """What stands in `Context[…]` for this declaration."""
        return type(self)

    if TYPE_CHECKING:
        # In a `State`, a kind is a field of the class and its cell a field of each instance. That
        # needs no descriptor when it runs: the instance has an attribute of the same name.
        @overload
        def __get__(self, instance: None, owner: Any) -> Self: ...
        @overload
        def __get__(self: HasCell[C], instance: object, owner: Any) -> C: ...
        def __get__(self, instance: object, owner: Any) -> Any: ...
