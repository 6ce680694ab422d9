"""The next commit of a partition: what it gathers, who takes part in it, how large it may become.

What is kept durably is in `records`; when a commit begins and what it releases, in `lifecycle`.
"""
