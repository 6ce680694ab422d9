"""What a worker answers when it is asked: unary calls, administration, inspection, pages, metrics.

How requests arrive is in `links` and `http`; nothing here owns a partition.
"""
