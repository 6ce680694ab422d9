"""The asyncio shell of a worker's partitions: applies their effects, routes batches, commits in
groups. It decides nothing that `partition` or `scheduler` can decide.
"""
