"""Overload for minutes, and a verdict: `python -m benchmarks.soak`.

It judges bounds and exactness, not speed.
"""
