"""How a message gets through a partition: admitted, dispatched, run, settled, completed or
cancelled, committed. The order in which messages wait is in `queue`, what is stored of them in
`records`.
"""
