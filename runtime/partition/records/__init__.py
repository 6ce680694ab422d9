"""What a partition keeps durably, one module a concern; each takes part in every commit.

The commit that all of it goes into is in `commit`, what only waits in memory in `queue`.
"""
