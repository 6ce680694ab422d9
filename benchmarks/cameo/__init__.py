"""Cameo's experiments: what the order of a queue does to who is urgent, on real workers and
simulated. Where work runs is the question of `dirigo` and `leases`.
"""
