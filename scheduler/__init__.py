"""Decides what runs next, where and in what batch; does no I/O and reads no clock.

Whoever carries a choice out lives in `runtime`.
"""
