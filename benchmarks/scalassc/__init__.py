"""ScalaSSC's experiments: batches, parallelism, grouping and state beside the code: `python -m
benchmarks.scalassc`. The applications themselves are in `examples`.
"""
