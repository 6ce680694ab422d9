"""Reads states as tables, each partition at one commit, and sets states in bulk.

What functions emit is read in `source`.
"""
