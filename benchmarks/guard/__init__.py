"""Compares two commits in one run: what a message costs now against what it cost before.

`experiment.py` starts both sides and takes turns; `load.py` and `app.py` run in the checkout of a
side, so they use nothing but the public API, which old commits have as well; `ratios.py` is the
arithmetic.
"""
