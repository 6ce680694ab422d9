"""The Spark bridge beside what Spark itself offers: `python -m benchmarks.spark`.

Rows without Spark are measured in `staging`.
"""
