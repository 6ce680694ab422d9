"""Runs functions inside a test: the worker's own parts on a virtual clock, without ports.

Users reach it as `sublet.testing`; helpers of Sublet's own tests are in `tests`.
"""
