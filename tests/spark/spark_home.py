"""A home of Spark whose Python processes start in a third of the time."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pyspark

HOME = Path(__file__).resolve().parents[2] / "build" / "spark-home"


def lean_spark_home() -> Path:
    """Return a home of Spark that has all of it but its zip of Python sources.

    Spark puts that zip before everything else on the path of its Python processes, and each of them
    compiles anew what it imports from there, a second long. Without it they import the installed
    package, which is compiled.
    """
    HOME.mkdir(parents=True, exist_ok=True)
    for name in ("bin", "jars", "sbin"):
        # Another process of the tests may be the first.
        with suppress(FileExistsError):
            (HOME / name).symlink_to(Path(pyspark.__file__).parent / name)
    return HOME
