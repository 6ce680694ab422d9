"""The `sublet` command."""


def main() -> None:
    """Run the command line given in `sys.argv`."""
    raise SystemExit("sublet: no commands yet")
