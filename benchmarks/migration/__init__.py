"""How long callers wait when a partition moves: `python -m benchmarks.migration`.

How long they wait after faults is measured by `tests/chaos`.
"""
