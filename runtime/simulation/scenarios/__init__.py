"""What a user says of a simulation: stages, loads, faults and distributions, in Python or in files.

Values only; nothing here runs.
"""
