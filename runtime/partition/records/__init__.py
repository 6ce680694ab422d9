"""What a partition keeps durably, one module a concern, and the commit that all of it goes into.

What only waits in memory is in `queue`; when to commit is decided in `lifecycle`.
"""
