"""Runs user code, on the loop or in threads, and holds the states that it reads and changes.

Which messages run, and when, is decided in `partition`; nothing here commits.
"""
