"""Which workers there are, who owns which partition, and how ownership moves. Where partitions
should be is computed in `scheduler/placement`; the partitions themselves are in `hosting`.
"""
