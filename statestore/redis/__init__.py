"""The store and directory for clusters, in Redis or a Redis Cluster; imported only where it is
configured. What every store promises is in `statestore/contract.py`.
"""
