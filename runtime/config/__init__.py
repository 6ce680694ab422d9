"""The settings and bounds of a worker, and the apps that a command names.

They are read once and handed on; no other room reads files of settings or the environment.
"""
