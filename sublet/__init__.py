"""Sublet: stateful serverless functions."""
