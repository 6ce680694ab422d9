"""Runs functions inside a test: the worker's own parts on a virtual clock, without ports."""
