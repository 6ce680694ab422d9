"""Loads that were recorded: files of what came when, read and written.

One message a row, in JSON lines (`{"time_ms": 12.5, "function": "shop/cart", "key": "ada",
"payload": {…}, "deadline_ms": 50}`) or in CSV with the same names in its first line. Only
`time_ms` and `key` are needed; a function that is not said is the load's target.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from sublet.functions.app import Function
from sublet.functions.duration import milliseconds
from sublet.runtime.simulation.scenarios.load import Arrival
from sublet.runtime.simulation.scenarios.scenario import Load

COLUMNS = ("time_ms", "function", "key", "payload", "deadline_ms")
TOGETHER_MS = 0.5
"""What comes within so little time for the same function is one arrival."""


def read_recorded(
    load: Load, functions: Mapping[str, Function], left_ms: Callable[[Load, str], float]
) -> list[Arrival]:
    """Return the arrivals of a recorded load, by time, shifted so that it begins at `start`."""
    assert load.recorded is not None
    path = Path(load.recorded)
    rows = sorted(_rows(path), key=lambda row: row["time_ms"])
    if not rows:
        raise ValueError(f"{path}: there is nothing in it")
    first_ms, start_ms = rows[0]["time_ms"], milliseconds(load.start)
    arrivals: list[Arrival] = []
    for row in rows:
        at_ms = start_ms + row["time_ms"] - first_ms
        function = _function_of(row["function"] or load.target, functions, path)
        due_ms = row["deadline_ms"]
        if due_ms is None:
            due_ms = left_ms(load, function)
        payload = functions[function].message_codec.encode(row["payload"])
        last = arrivals[-1] if arrivals else None
        if (
            last
            and last.function == function
            and last.left_ms == due_ms
            and (at_ms - last.at_ms <= TOGETHER_MS)
        ):
            assert isinstance(last.keys, list)
            assert isinstance(last.payloads, list)
            last.keys.append(row["key"])
            last.payloads.append(payload)
        else:
            arrivals.append(Arrival(at_ms, function, [row["key"]], [payload], due_ms))
    return arrivals


def _function_of(name: str, functions: Mapping[str, Function], path: Path) -> str:
    found = [each for each in functions if each == name or each.rpartition("/")[2] == name]
    if len(found) != 1:
        known = ", ".join(sorted(functions))
        raise ValueError(f"{path}: {name!r} is not one function; known: {known}")
    return found[0]


def _rows(path: Path) -> Iterable[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8") as file:
        if path.suffix == ".csv":
            for number, row in enumerate(csv.DictReader(file), 2):
                payload = row.get("payload")
                yield _row(path, number, {**row, "payload": json.loads(payload or "null")})
        else:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _row(path, number, json.loads(line))


def _row(path: Path, number: int, row: Any) -> dict[str, Any]:
    if not isinstance(row, dict) or row.get("time_ms") in (None, "") or "key" not in row:
        raise ValueError(
            f"{path}, line {number}: time_ms and key are needed; allowed: {', '.join(COLUMNS)}"
        )
    if unknown := sorted(set(row) - set(COLUMNS)):
        raise ValueError(
            f"{path}, line {number}: unknown {', '.join(map(str, unknown))}; "
            f"allowed: {', '.join(COLUMNS)}"
        )
    deadline = row.get("deadline_ms")
    try:
        return {
            "time_ms": float(row["time_ms"]),
            "function": row.get("function") or "",
            "key": str(row["key"]),
            "payload": row.get("payload"),
            "deadline_ms": None if deadline in (None, "") else float(deadline),
        }
    except (TypeError, ValueError):
        raise ValueError(f"{path}, line {number}: time_ms and deadline_ms are numbers") from None


Row = tuple[float, str, str, Any, float | None]
"""time_ms, function, key, payload, deadline_ms."""


def write_recorded(path: str | Path, rows: Iterable[Row]) -> Path:
    """Write JSON lines that a `Load(recorded=…)` reads; messages are what JSON can say."""
    path = Path(path)
    with path.open("w", encoding="utf-8") as file:
        for row in rows:
            line = dict(zip(COLUMNS, row, strict=True))
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
    return path
