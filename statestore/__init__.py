"""Keeps the state, dedup positions and outgoing messages of partitions durably."""
