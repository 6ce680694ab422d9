"""Keeps the state, dedup positions and outgoing messages of partitions durably: one contract,
several stores. What a commit means is decided in `runtime/partition`; a store only keeps it,
whole and once.
"""
