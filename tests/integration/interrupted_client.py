"""A program without a loop that calls a function until somebody interrupts it.

python -m tests.integration.interrupted_client ADDRESS FUNCTION KEY MESSAGE
"""

from __future__ import annotations

import sys

from sublet import BlockingClient

if __name__ == "__main__":
    address, function, key, message = sys.argv[1:]
    with BlockingClient(address) as client:
        try:
            client.call(function, key, message)
        except KeyboardInterrupt:
            # It goes on; what it does not wait for must end all the same.
            sys.stdout.write("interrupted\n")
            sys.stdout.flush()
            sys.stdin.read()
