"""Dirigo's experiments, simulated: workloads, experiments, and how they are shown.

Leases on real workers are measured in `benchmarks/leases`.
"""
