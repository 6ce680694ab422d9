"""The `sublet` command: what can be typed, how processes are supervised, how errors become exit
codes. What the commands do is in `commands`, one module a group.
"""
