"""Kinds of state that a function can declare, and what their cells offer to handlers.

| declared | in the handler |
|---|---|
| nothing, `state=T`, `Value(T)` | `ValueState` |
| `Map(K, V)`, `List(T)` | `MapState`, `ListState` |
| `Sum()`, `Count()`, `Mean()` | `SumState`, `CountState`, `MeanState` |
| `Min()`, `Max()` | `ExtremeState` |
| `SetUnion(T)`, `Merged(T, …)` | `SetUnionState`, `MergedState` |
| `TopK(k)`, `Quantiles()` | `TopKState`, `QuantilesState` |
| a `State` class | that class: the above, by name |
| `Fields(…)`, a dict | `FieldsState`: the same, without a class |
"""

from sublet.functions.state.cell import (
    ABSENT,
    STATE_BYTES_MAX_DEFAULT,
    Cell,
    ChangedRow,
    MergeableKind,
    StateClock,
    StateKind,
    StoredRow,
    Undo,
)
from sublet.functions.state.collections import List, ListState, Map, MapState
from sublet.functions.state.fields import (
    Fields,
    FieldsState,
    State,
    mergeable_kind_of,
    state_kind_of,
)
from sublet.functions.state.kind import Declares, HasCell, HasPlain, Kind
from sublet.functions.state.mergeable import (
    Count,
    CountState,
    ExtremeState,
    Max,
    Mean,
    MeanState,
    Merged,
    MergedState,
    Min,
    SetUnion,
    SetUnionState,
    Sum,
    SumState,
)
from sublet.functions.state.sketches import (
    Quantiles,
    QuantilesState,
    TopK,
    TopKPartial,
    TopKState,
)
from sublet.functions.state.value import Value, ValueState

__all__ = [
    "ABSENT",
    "STATE_BYTES_MAX_DEFAULT",
    "Cell",
    "ChangedRow",
    "Count",
    "CountState",
    "Declares",
    "ExtremeState",
    "Fields",
    "FieldsState",
    "HasCell",
    "HasPlain",
    "Kind",
    "List",
    "ListState",
    "Map",
    "MapState",
    "Max",
    "Mean",
    "MeanState",
    "MergeableKind",
    "Merged",
    "MergedState",
    "Min",
    "Quantiles",
    "QuantilesState",
    "SetUnion",
    "SetUnionState",
    "State",
    "StateClock",
    "StateKind",
    "StoredRow",
    "Sum",
    "SumState",
    "TopK",
    "TopKPartial",
    "TopKState",
    "Undo",
    "Value",
    "ValueState",
    "mergeable_kind_of",
    "state_kind_of",
]
