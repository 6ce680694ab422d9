"""What a partition offers beside running messages, one class a feature: leases, pipelines, calls of
handlers, timers, windows, changes by hand, clients that leave, delivery of what was sent.

Hosts and services call these; each takes part in the steps of its partition (`step_machine`). What
messages go through is in `lifecycle`, what is stored in `records`.
"""
