"""The HTTP ingress of a worker: functions, state and egress for whoever speaks no gRPC.

It turns requests into calls of `services` and keeps nothing of its own.
"""
