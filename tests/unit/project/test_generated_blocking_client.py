"""The committed blocking client is what generators/blocking_client.py writes today."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from generators.blocking_client import OUTPUT, TWINS, Twin, generate, sources

SHELF = Twin("shelves", "Shelf")
BOOK = Twin("shelves", "Book", {"pages": "next_page"})
SOURCE = '''
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class Title(Generic[T]):
    pass


class Page:
    pass


class Shelf:
    """Holds books. `async with client.shelf() as shelf`."""

    def __init__(self) -> None:
        pass

    @property
    def width(self) -> int:
        """In books."""
        return 3

    @overload
    async def find(self, title: Title[T], *, tries: int = 1_000) -> T: ...

    @overload
    async def find(self, title: str, *, tries: int = 1_000) -> Any: ...

    async def find(self, title: Title[Any] | str, *, tries: int = 1_000) -> Any:
        """Find what `Shelf.put` has put there: `await shelf.find("a")`."""

    async def put(self, books: Sequence[str], /, at: int = 0) -> None:
        pass

    def open(self, title: Title[T]) -> Book[T]:
        """Open a `Book`."""

    async def _dust(self) -> None:
        pass


class Book(Generic[T]):
    """Has pages: `async for page in book`."""

    def __aiter__(self) -> Book[T]:
        return self

    async def __anext__(self) -> Page:
        pass

    async def next_page(self) -> Page | None:
        """Return a page."""
'''


def generated(source: str = SOURCE) -> str:
    return generate({"shelves": source}, (SHELF, BOOK))


def methods(text: str, name: str) -> dict[str, list[str]]:
    """Return the methods of a class as text, overloads before what they belong to."""
    found: dict[str, list[str]] = {}
    for each in ast.parse(text).body:
        if isinstance(each, ast.ClassDef) and each.name == name:
            for node in each.body:
                if isinstance(node, ast.FunctionDef):
                    found.setdefault(node.name, []).append(ast.unparse(node))
    return found


def test_the_committed_code_is_what_the_asyncio_classes_generate() -> None:
    assert OUTPUT.read_text() == generate(sources()), "run `make blocking`"


def test_every_asyncio_class_has_its_twin_in_the_public_interface() -> None:
    import sublet

    for each in TWINS:
        assert {each.name, each.blocking_name} <= set(sublet.__all__)


def test_overloads_and_types_are_kept_as_they_are() -> None:
    generic, named, implementation = methods(generated(), "BlockingShelf")["find"]

    assert generic.startswith("@overload\ndef find(self, title: Title[T], *, tries: int=1000) -> T")
    assert named.startswith("@overload\ndef find(self, title: str, *, tries: int=1000) -> Any")
    assert "self._thread.wait(lambda: self._async.find(title, tries=tries))" in implementation
    assert "tries: int = 1_000" in generated()


def test_docstrings_speak_of_the_blocking_classes() -> None:
    text = generated()

    assert 'Find what `BlockingShelf.put` has put there: `shelf.find("a")`.' in text
    assert "`with client.shelf() as shelf`" in text
    assert "`for page in book`" in text


def test_a_method_that_returns_a_class_with_a_twin_returns_the_twin() -> None:
    (opened,) = methods(generated(), "BlockingShelf")["open"]

    assert opened == dedent(
        '''\
        def open(self, title: Title[T]) -> BlockingBook[T]:
            """Open a `BlockingBook`."""
            return BlockingBook(self._thread.run(lambda: self._async.open(title)), self._thread)'''
    )


def test_a_generic_class_has_a_generic_twin() -> None:
    text, of_book = generated(), methods(generated(), "BlockingBook")

    assert "class BlockingBook(Generic[T]):" in text
    assert "twin: Book[T]" in of_book["__init__"][0]
    assert "-> BlockingBook[T]" in of_book["__iter__"][0]


def test_private_methods_and_nothing_else_are_left_out() -> None:
    assert set(methods(generated(), "BlockingShelf")) == {
        "__init__",
        "width",
        "find",
        "put",
        "open",
    }
    assert set(methods(generated(), "BlockingBook")) == {
        "__init__",
        "__iter__",
        "__next__",
        "next_page",
        "pages",
    }


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ("async def put(self, *books: str) -> None:", "put takes *args or **kwargs"),
        ("async def put(self, books: Unheard) -> None:", "where does Unheard come from?"),
    ],
)
def test_what_cannot_be_derived_is_refused(wrong: str, complaint: str) -> None:
    source = SOURCE.replace(
        "async def put(self, books: Sequence[str], /, at: int = 0) -> None:", wrong
    )

    with pytest.raises((LookupError, NotImplementedError)) as caught:
        generated(source)

    assert complaint in str(caught.value)
