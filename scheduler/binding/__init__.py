"""Binding policies: whether a message runs at its owner or at a peer under a lease.

Policies choose by read-only views; leases themselves are in `runtime/leases`.
"""
