"""Feeds files of history to functions, in batches that can be found again; runs without Spark.

How rows become messages is shared with `sink`.
"""
