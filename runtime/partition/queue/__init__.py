"""What waits in a partition: in which order, behind which key, with which states read ahead.

Nothing here is durable, and nothing here starts a run.
"""
