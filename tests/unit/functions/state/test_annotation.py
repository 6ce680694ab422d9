from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Optional

import pytest

from sublet.functions.state import (
    Count,
    List,
    Map,
    Max,
    Mean,
    Merged,
    Min,
    Quantiles,
    SetUnion,
    State,
    Sum,
    TopK,
    Value,
)
from sublet.functions.state.annotation import annotated_kind


@dataclass
class Cart:
    items: int = 0


@dataclass
class Order:
    article: str


class Account(State):
    balance = Sum()


@pytest.mark.parametrize(
    ("annotated", "kind"),
    [
        (Any, "Value(typing.Any)"),
        (int, "Value(int)"),
        (list[int], "Value(list[int])"),
        (datetime | None, "Value(datetime.datetime | None)"),
        (Sum, "Sum()"),
        (Count, "Count()"),
        (Mean, "Mean()"),
        (Quantiles, "Quantiles(0.01)"),
        (Min, "Min(int | float)"),
        (Max[datetime], "Max(datetime.datetime)"),
        (SetUnion[str], "SetUnion(str)"),
        (Map[str, int], "Map(str, int)"),
        (List[int], "List(int)"),
        (Account, "Account"),
    ],
)
def test_an_annotation_declares_a_state(annotated: Any, kind: str) -> None:
    assert repr(annotated_kind(annotated, None)) == kind


@pytest.mark.parametrize(
    ("annotated", "declared"),
    [
        (int, int),
        (int, Value(int, ttl="1h")),
        (Optional[int], int | None),  # noqa: UP045
        (Order, Value(Order, default=Order("pen"))),
        (Order, Value(Order, default_factory=lambda: Order("pen"))),
        (Sum, Sum()),
        (Map[str, int], Map(str, int, ttl="1h")),
        (List[int], List(int, length_max=3)),
        (SetUnion[int], SetUnion(int)),
        (Min[int], Min(int)),
        (Max, Max()),
        (TopK, TopK(3)),
        (TopK[int], TopK(3, of=int)),
        (Merged[int], Merged(int, zero=0, merge=max)),
        (Account, Account),
        (Any, {"balance": Sum()}),
        (int, Any),
    ],
)
def test_an_annotation_agrees_with_a_declaration(annotated: Any, declared: Any) -> None:
    kind: Any = annotated_kind(annotated, declared)

    assert not isinstance(declared, Value) or kind is declared


@pytest.mark.parametrize(
    ("annotated", "declared", "text"),
    [
        (str, int, r"declared as Value\(int\), but ctx is Context\[str\]"),
        (Sum, Count(), r"declared as Count\(\), but ctx is Context\[Sum\]"),
        (Map[str, str], Map(str, int), r"Map\(str, int\), but ctx is Context\[Map\[str, str\]\]"),
        (Account, Sum(), r"declared as Sum\(\), but ctx is Context\[Account\]"),
        (Sum, Account, r"declared as Account, but ctx is Context\[Sum\]"),
        (int, {"n": int}, r"Context\[int\]; make its fields those of a State class"),
        (Order, None, r"Order has no default; allowed: Context\[Order \| None\], or state=Value\("),
        (Order, Order, "Order has no default"),
        (int | str, None, "has no default"),
        (TopK[str], None, r"Context\[TopK\[str\]\] does not say everything; add state=TopK\("),
        (Map, None, r"Context\[Map\] does not say everything; add state=Map\("),
        (Merged[int], None, r"add state=Merged\("),
        (Value[int], None, r"Context\[Value\[T\]\] is written Context\[T\]"),
        (SetUnion[list[int]], None, "SetUnion needs an immutable type"),
    ],
)
def test_what_does_not_agree_or_says_too_little_is_refused(
    annotated: Any, declared: Any, text: str
) -> None:
    with pytest.raises(TypeError, match=text):
        annotated_kind(annotated, declared)
