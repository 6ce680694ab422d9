"""The commands of `sublet`, one module a group: each asks a cluster, or starts something, and
prints. Arguments and help texts are in `cli/main.py`, so that `--help` imports none of these.
"""
