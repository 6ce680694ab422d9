"""What came out of a simulation: as numbers, tables and plots.

Nothing here influences a run.
"""
