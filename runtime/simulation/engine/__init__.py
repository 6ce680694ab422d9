"""The simulated cluster at work: clock, network, store, workers, sources of load.

What is simulated is said in `scenarios`; what came of it is told in `reports`.
"""
