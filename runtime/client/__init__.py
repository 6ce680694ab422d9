"""The client: sessions, channels that send again, pipelines, readers of egresses and snapshots.

It runs in users' processes and imports nothing of `partition`, `hosting` or `leases`.
"""
