"""The HTTP ingress of a worker: functions, state and egress for whoever speaks no gRPC."""
