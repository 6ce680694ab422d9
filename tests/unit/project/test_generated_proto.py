"""The committed protobuf code is what proto/generate.py writes today."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def generated_files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.glob("sublet_pb2*.py*")}


def test_the_committed_code_is_what_the_proto_file_generates(tmp_path: Path) -> None:
    # A process of its own: protoc's plugin registers descriptors for the life of the process.
    command = [sys.executable, str(ROOT / "proto" / "generate.py"), "--output", str(tmp_path)]
    subprocess.run(command, check=True, timeout=200)

    fresh = generated_files(tmp_path / "sublet" / "proto")
    assert len(fresh) == 4
    assert generated_files(ROOT / "proto" / "generated") == fresh, "run `make proto`"
