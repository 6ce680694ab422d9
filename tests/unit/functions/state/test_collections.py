from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from sublet.functions.errors import StateTooLargeError, StateTypeError
from sublet.functions.state import List, ListState, Map, MapState, StateClock


@dataclass
class Visit:
    page: str
    seconds: int = 0


def packed(value: Any) -> bytes:
    return msgspec.msgpack.encode(value)


def position(index: int) -> bytes:
    return index.to_bytes(8, "big")


def settle(cell: Any) -> list[Any]:
    if cell.undo:
        cell.undo.clear()
    return cell.drain()  # type: ignore[no-any-return]


def new_map(clock: StateClock | None = None, **options: Any) -> MapState[str, int]:
    return Map[str, int](str, int, **options).cell((), clock or StateClock())


def new_list(clock: StateClock | None = None, **options: Any) -> ListState[int]:
    return List[int](int, **options).cell((), clock or StateClock())


def test_a_map_reads_like_a_dict() -> None:
    cell = new_map()
    cell.put("a", 1)
    cell.put("b", 2)

    assert (cell.get("a"), cell.get("c"), cell.get("c", 0)) == (1, None, 0)
    assert ("a" in cell, "c" in cell, len(cell)) == (True, False, 2)
    assert (cell.keys(), cell.values(), list(cell)) == (["a", "b"], [1, 2], ["a", "b"])
    assert cell.items() == [("a", 1), ("b", 2)]
    assert (cell.delete("a"), cell.delete("a")) == (True, False)
    assert cell.items() == [("b", 2)]
    cell.clear()
    assert (len(cell), cell.is_empty, cell.size_bytes) == (0, True, 0)


@pytest.mark.parametrize("make", [new_map, new_list])
def test_entries_live_from_when_they_were_written_not_from_when_the_handler_began(
    make: Any,
) -> None:
    moments = iter([2_000, 3_500])
    clock = StateClock(now_ms=1_000, read=lambda: next(moments))
    cell = make(clock, ttl="1s")
    for name in "12":
        _ = cell.put(name, 1) if make is new_map else cell.append(1)

    assert [row[2] for row in settle(cell)] == [3_000, 4_500]
    clock.now_ms = 3_000
    assert len(cell) == 1


def test_a_map_stores_only_the_entries_that_were_touched() -> None:
    rows = [(packed(name), packed(1), None) for name in "abc"]
    cell = Map[str, int](str, int).cell(rows, StateClock())
    cell.put("b", 5)
    cell.delete("c")
    cell.get("a")

    assert settle(cell) == [(packed("b"), packed(5), None), (packed("c"), None, None)]
    assert settle(cell) == []


def test_keys_of_a_map_may_be_any_immutable_type() -> None:
    kind: Map[Any, Visit] = Map(tuple[int, frozenset[str]], Visit)
    cell = kind.cell((), StateClock())
    cell.put((1, frozenset({"b", "a", "c"})), Visit("x"))
    cell.get((1, frozenset({"a", "b", "c"}))).seconds = 9

    assert cell.get((1, frozenset({"c", "b", "a"}))) == Visit("x")
    with pytest.raises(TypeError, match="immutable"):
        Map(list[int], int)


@pytest.mark.parametrize(("key", "value"), [(1, 1), ("a", "x"), (None, 1), ("a", None), ("a", 1.0)])
def test_a_map_refuses_a_wrong_type_where_it_is_put(key: Any, value: Any) -> None:
    cell = new_map()
    with pytest.raises(StateTypeError, match="declared as"):
        cell.put(key, value)
    assert not cell.undo
    if not isinstance(key, str):
        with pytest.raises(StateTypeError, match="declared as str"):
            cell.get(key)


def test_stored_entries_that_do_not_fit_are_named() -> None:
    kind: Map[str, int] = Map(str, int)
    with pytest.raises(StateTypeError, match="stored state does not fit"):
        kind.cell([(packed("a"), packed("x"), None)], StateClock()).get("a")
    with pytest.raises(StateTypeError, match="stored state does not fit"):
        kind.cell([(b"", packed(1), None)], StateClock()).keys()


def test_a_rollback_of_a_map_restores_entries_and_what_is_still_to_be_stored() -> None:
    cell = new_map()
    cell.put("a", 1)
    cell.put("b", 2)
    cell.undo.clear()
    size_bytes = cell.size_bytes
    cell.put("a", 10)
    cell.delete("b")
    cell.put("c", 3)
    cell.clear()
    cell.put("d", 4)

    cell.rollback()

    assert sorted(cell.items()) == [("a", 1), ("b", 2)]
    assert cell.size_bytes == size_bytes
    assert [row[0] for row in settle(cell)] == [packed("a"), packed("b")]


def test_entries_of_a_map_go_one_by_one() -> None:
    clock = StateClock()
    cell = new_map(clock, ttl="1s")
    cell.put("a", 1)
    clock.now_ms = 400
    cell.put("b", 2)
    rows = settle(cell)
    assert [row[2] for row in rows] == [1000, 1400]
    clock.now_ms = 900
    cell.put("a", 3)
    cell.rollback()

    clock.now_ms = 1000
    assert (cell.get("a"), "a" in cell, cell.keys(), len(cell)) == (None, False, ["b"], 1)
    assert not cell.undo
    cell.put("c", 3)
    assert settle(cell) == [(packed("a"), None, None), (packed("c"), packed(3), 2000)]

    assert Map[str, int](str, int).cell(rows, clock).items() == [("b", 2)]


def test_an_entry_that_is_put_again_lives_on_and_holds_up_no_other() -> None:
    clock = StateClock()
    cell = new_map(clock, ttl="1s")
    cell.put("a", 1)
    cell.put("b", 1)
    clock.now_ms = 500
    cell.put("a", 2)

    clock.now_ms = 1000
    assert cell.items() == [("a", 2)]
    clock.now_ms = 1500
    assert cell.items() == []


def test_a_map_is_bounded() -> None:
    cell = new_map(StateClock(bytes_max=100))
    cell.put("a", 1)
    cell.put("b", 1)
    with pytest.raises(StateTooLargeError, match="allowed: 100"):
        cell.put("c", 1)
    with pytest.raises(StateTooLargeError):
        new_map(StateClock(bytes_max=100)).put("x" * 100, 1)
    cell.put("a", 2)
    cell.delete("a")
    cell.put("c", 1)
    assert cell.keys() == ["b", "c"]


def test_a_state_above_a_lowered_bound_can_still_shrink() -> None:
    rows = [(packed(f"key{index}"), packed(1), None) for index in range(10)]
    cell = Map[str, int](str, int).cell(rows, StateClock(bytes_max=100))
    cell.put("key1", 2)
    cell.delete("key2")
    with pytest.raises(StateTooLargeError):
        cell.put("new", 1)


def test_a_list_grows_at_its_end_and_shrinks_at_its_front() -> None:
    cell = new_list()
    cell.append(1)
    cell.extend([2, 3, 4])

    assert (list(cell), len(cell), cell[0], cell[-1]) == ([1, 2, 3, 4], 4, 1, 4)
    assert (cell[1:3], cell[::2], cell[::-1], cell[3:0:-2], cell[9:]) == (
        [2, 3],
        [1, 3],
        [4, 3, 2, 1],
        [4, 2],
        [],
    )
    assert cell.pop_first() == 1
    assert list(cell) == [2, 3, 4]
    cell.clear()
    assert (list(cell), cell.is_empty, cell.size_bytes) == ([], True, 0)
    for read in (cell.pop_first, lambda: cell[0]):
        with pytest.raises(IndexError):
            read()


def test_an_append_is_one_row_and_a_pop_is_one_row() -> None:
    cell = new_list()
    cell.extend([5, 6, 7])
    assert [row[0] for row in settle(cell)] == [position(0), position(1), position(2)]

    cell.append(8)
    assert settle(cell) == [(position(3), packed(8), None)]
    cell.pop_first()
    assert settle(cell) == [(position(0), None, None)]
    cell.append(9)
    cell.clear()
    cell.append(1)
    assert settle(cell) == [
        *[(position(index), None, None) for index in (1, 2, 3)],
        (position(5), packed(1), None),
    ]
    assert settle(cell) == []


def test_a_full_list_drops_from_its_front() -> None:
    cell = new_list(length_max=3)
    cell.extend([1, 2])
    settle(cell)
    cell.extend([3, 4])
    assert list(cell) == [2, 3, 4]
    cell.rollback()
    assert list(cell) == [1, 2]
    cell.extend(range(10))
    assert list(cell) == [7, 8, 9]
    cell.append(10)
    assert list(cell) == [8, 9, 10]
    deleted = [row for row in settle(cell) if row[1] is None]
    assert deleted == [(position(0), None, None), (position(1), None, None)]


def test_a_rollback_of_a_list_restores_both_ends() -> None:
    cell = new_list()
    cell.extend([1, 2, 3])
    settle(cell)
    size_bytes = cell.size_bytes
    for change in (
        lambda: cell.extend([4, 5]),
        lambda: cell.pop_first(),
        lambda: (cell.append(4), [cell.pop_first() for _ in range(4)], cell.append(5)),
        lambda: (cell.clear(), cell.extend([7, 8])),
    ):
        change()
        assert cell.undo
        cell.rollback()
        assert (list(cell), cell.size_bytes, cell.drain()) == ([1, 2, 3], size_bytes, [])


def test_elements_of_a_list_go_one_by_one() -> None:
    clock = StateClock()
    cell = new_list(clock, ttl="1s")
    cell.append(1)
    clock.now_ms = 500
    cell.append(2)
    rows = settle(cell)
    clock.now_ms = 1000

    assert (list(cell), len(cell), cell[0]) == ([2], 1, 2)
    assert not cell.undo
    cell.append(3)
    assert settle(cell) == [(position(0), None, None), (position(2), packed(3), 2000)]
    assert list(List[int](int).cell(rows, clock)) == [2]


def test_no_element_outlives_a_later_one() -> None:
    clock = StateClock(now_ms=100)
    kind: List[int] = List(int, ttl="1s")
    longer_before = [(position(0), packed(1), 9000), (position(1), packed(2), 600)]
    cell = kind.cell(longer_before, clock)
    assert list(cell) == [1, 2]
    clock.now_ms = 600
    assert list(cell) == []

    dropped_by_the_store = [(position(0), packed(1), 9000), (position(2), packed(3), 9000)]
    cell = kind.cell(dropped_by_the_store, clock)
    assert list(cell) == [3]
    assert [row[0] for row in settle(cell)] == [position(0), position(1)]


def test_stored_elements_that_do_not_fit_are_named() -> None:
    kind: List[int] = List(int)
    with pytest.raises(StateTypeError, match="stored state does not fit"):
        list(kind.cell([(position(0), packed("x"), None)], StateClock()))
    with pytest.raises(StateTypeError, match="not written by a List"):
        kind.cell([(b"", packed(1), None)], StateClock())
    with pytest.raises(StateTypeError, match="no element at 1"):
        kind.cell([(position(place), packed(1), None) for place in (0, 2)], StateClock())


def test_a_list_takes_all_or_nothing() -> None:
    cell = new_list(StateClock(bytes_max=100))
    wrong: Any = [1, "x"]
    with pytest.raises(StateTypeError, match="declared as int"):
        cell.extend(wrong)
    with pytest.raises(StateTooLargeError, match="allowed: 100"):
        cell.extend([1, 2, 3])
    assert (list(cell), bool(cell.undo)) == ([], False)
    cell.extend([1, 2])
    with pytest.raises(StateTooLargeError):
        cell.append(3)
    assert list(cell) == [1, 2]
    cell.extend([])


def test_a_bounded_list_makes_room_before_it_grows() -> None:
    cell = new_list(StateClock(bytes_max=100), length_max=2)
    cell.extend([1, 2, 3])
    cell.append(4)
    assert list(cell) == [3, 4]
    with pytest.raises(ValueError, match="allowed: 1 or more"):
        List(int, length_max=0)
