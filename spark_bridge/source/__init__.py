"""Reads what functions emit to an egress, as a stream or a bounded read.

States are read in `state`.
"""
