"""A home of Spark whose Python and Java processes cost less to start."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pyspark

HOME = Path(__file__).resolve().parents[2] / "build" / "spark-home"
# They live for some minutes at most, on few cores: the second compiler would only cost.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.net.preferIPv4Stack=true"
CONF = {
    "spark-defaults.conf": (
        f"spark.driver.extraJavaOptions {JAVA_OPTIONS}\n"
        f"spark.executor.extraJavaOptions {JAVA_OPTIONS}\n"
    ),
    # Of the Java process that only says how to start another one.
    "spark-env.sh": f"SPARK_LAUNCHER_OPTS='{JAVA_OPTIONS}'\n",
}


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
    (HOME / "conf").mkdir(exist_ok=True)
    for name, text in CONF.items():
        # Nobody reads half of it while another process writes.
        made = HOME / "conf" / f"{name}.{os.getpid()}"
        made.write_text(text)
        made.rename(HOME / "conf" / name)
    return HOME
