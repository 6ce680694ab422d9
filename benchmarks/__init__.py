"""Measures Sublet beside its peers: the same workloads, the same machine, the same run."""
