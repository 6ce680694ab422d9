"""Sublet beside its peers, in one run: `python -m benchmarks.compare`.

The other systems are in `benchmarks/peers`.
"""
