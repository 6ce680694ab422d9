"""The worker, its transport and its command line: everything that waits, sends or starts."""
