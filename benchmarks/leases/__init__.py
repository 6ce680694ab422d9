"""What lending work to an idle peer is worth, and what it costs: `python -m benchmarks.leases`.

The paper's scale is simulated in `dirigo`.
"""
