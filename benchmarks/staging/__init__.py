"""How many rows of tables a pipeline brings a second: `python -m benchmarks.staging`.

The same from Spark is measured in `spark`.
"""
