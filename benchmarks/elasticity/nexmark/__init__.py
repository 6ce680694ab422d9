"""Nexmark in bursts: queries as Sublet functions, checked against a batch; bursts at 128 workers,
simulated."""
