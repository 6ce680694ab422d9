"""What is packed with an app, and what is not."""

from __future__ import annotations

import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

APP = """
import msgspec
from sublet import App, Context
from shop.prices import price

app = App("shop")

@app.function
def buy(ctx: Context, amount: int) -> int:
    return price(amount)
"""
SCRIPT = """
import sys
from pathlib import Path
from sublet.runtime.cli.packing import PackError, pack
try:
    found = pack("shop.app:app", Path.cwd(), with_packages={with_packages!r}, include={include!r})
except PackError as error:
    sys.exit(str(error))
Path("package.zip").write_bytes(found.data)
print(found.digest, *found.app_files)
print(*found.packages, sep="\\n")
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "app.py").write_text(APP)
    (package / "prices.py").write_text("def price(amount): return 2 * amount\n")
    (package / "not_imported.py").touch()
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "rates.csv").write_text("1,2\n")
    return tmp_path


def packed(
    project: Path, with_packages: tuple[str, ...] = (), include: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    script = SCRIPT.format(with_packages=with_packages, include=include)
    command = [sys.executable, "-c", script]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=False)


def test_the_app_sublet_and_what_both_import_are_packed(project: Path) -> None:
    first = packed(project, include=("data",))
    assert first.returncode == 0, first.stderr
    digest, *files = first.stdout.splitlines()[0].split()
    names = set(zipfile.ZipFile(io.BytesIO((project / "package.zip").read_bytes())).namelist())

    assert files == [
        "app/data/rates.csv",
        "app/shop/__init__.py",
        "app/shop/app.py",
        "app/shop/prices.py",
    ]
    assert {"sublet/runtime/faas.py", "msgspec/__init__.py", "grpc/__init__.py"} <= names
    assert any(name.startswith("sublet/runtime/__pycache__/faas.") for name in names)
    assert not any("spark" in name or name.startswith("boto") for name in names)
    assert packed(project, include=("data",)).stdout.split()[0] == digest


@pytest.mark.parametrize(
    ("with_packages", "include", "problem"),
    [
        (("no-such-package",), (), "no-such-package is not installed here"),
        ((), ("no-such-file",), "there is no such file or folder"),
        ((), ("../",), "there is no such file or folder"),
        (("pyspark",), (), "Lambda takes 250 MB; the largest: pyspark"),
    ],
)
def test_what_cannot_be_packed_is_told(
    project: Path, with_packages: tuple[str, ...], include: tuple[str, ...], problem: str
) -> None:
    found = packed(project, with_packages, include)

    assert found.returncode
    assert problem in found.stderr
