"""What a worker remembers and tells about its work: telemetry, traces, log lines.

The metrics page, which asks all other parts, is in `services`.
"""
