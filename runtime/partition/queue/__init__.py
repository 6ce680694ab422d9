"""What waits in a partition: in which order, for which key or call, with which states read ahead.

Nothing here is durable, and nothing here starts a run.
"""
