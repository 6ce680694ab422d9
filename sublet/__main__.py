"""Lets `python -m sublet` stand in for the `sublet` command."""

from sublet.runtime.cli.main import main

if __name__ == "__main__":
    main()
