"""The embedded store and directory: one SQLite file for all workers of a machine.

What every store promises is in `statestore/contract.py`.
"""
