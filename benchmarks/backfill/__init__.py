"""Whether live calls keep their deadlines while history is fed: `python -m benchmarks.backfill`.

How fast rows are brought is measured in `staging`.
"""
