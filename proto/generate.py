"""Generates proto/generated from proto/sublet.proto.

Run by `make proto`. A test runs it into an empty folder and compares, so what is committed is
always what this writes.
"""

import argparse
import sysconfig
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent


def generate(output: Path) -> None:
    """Write the modules below `output`/sublet/proto, which must exist."""
    plugin = Path(sysconfig.get_path("scripts")) / "protoc-gen-mypy_grpc"
    status = protoc.main(
        [
            "protoc",
            # The virtual path makes protoc write `from sublet.proto import …` by itself.
            f"-Isublet/proto={ROOT / 'proto'}",
            f"-I{files('grpc_tools') / '_proto'}",
            f"--plugin=protoc-gen-mypy_grpc={plugin}",
            f"--python_out={output}",
            f"--pyi_out={output}",
            f"--grpc_python_out={output}",
            f"--mypy_grpc_out=quiet:{output}",
            "sublet/proto/sublet.proto",
        ]
    )
    if status != 0:
        raise SystemExit(f"protoc failed with status {status}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Generate proto/generated from sublet.proto.")
    parser.add_argument(
        "--output",
        type=Path,
        default=ROOT,
        help="folder below which sublet/proto is written (default: this repository)",
    )
    output: Path = parser.parse_args().output
    (output / "sublet" / "proto").mkdir(parents=True, exist_ok=True)
    generate(output)


if __name__ == "__main__":
    main()
