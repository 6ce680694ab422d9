"""A home of Spark whose Python and Java processes cost less to start.

`python -m tests.spark.spark_home` makes the archive of Java's classes, with which a Spark starts in
half of the time. Those that start before it is there do without.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

HOME = Path(__file__).resolve().parents[2] / "build" / "spark-home"
# They live for some minutes at most, on few cores: the second compiler would only cost.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.net.preferIPv4Stack=true"
ARCHIVE = HOME / "classes.jsa"
MAKES_ARCHIVE = "SUBLET_TESTS_CLASS_ARCHIVE"
"""The variable that names the file to be made."""

# Java shares no classes where a folder on its path has files, as that of Spark's settings has: so
# there is an empty one, and the settings come as options.
_SHARED = f"""
share_classes() {{
    SPARK_CONF_DIR='{HOME}/no-conf'
    SPARK_SUBMIT_OPTS="{JAVA_OPTIONS} $1 -Dspark.executor.extraJavaOptions='{JAVA_OPTIONS} $2'"
    SPARK_DAEMON_JAVA_OPTS="$SPARK_DAEMON_JAVA_OPTS $2"
}}
shared='-XX:SharedArchiveFile={ARCHIVE} -Xlog:cds=off -Xlog:cds+dynamic=off'
if [ -n "${MAKES_ARCHIVE}" ]; then
    share_classes "-XX:ArchiveClassesAtExit=${MAKES_ARCHIVE} -Xlog:cds=off -Xlog:cds+dynamic=off" ""
elif [ "$SPARK_HOME" = '{HOME}' ] && [ -f '{ARCHIVE}' ]; then
    share_classes "$shared" "$shared"
fi
"""
CONF = {
    "spark-defaults.conf": (
        f"spark.driver.extraJavaOptions {JAVA_OPTIONS}\n"
        f"spark.executor.extraJavaOptions {JAVA_OPTIONS}\n"
    ),
    # The first line is of the Java process that only says how to start another one.
    "spark-env.sh": f"SPARK_LAUNCHER_OPTS='{JAVA_OPTIONS}'\n{_SHARED}",
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
    for name in ("conf", "no-conf"):
        (HOME / name).mkdir(exist_ok=True)
    for name, text in CONF.items():
        # Nobody reads half of it while another process writes.
        made = HOME / "conf" / f"{name}.{os.getpid()}"
        made.write_text(text)
        made.rename(HOME / "conf" / name)
    return HOME


def make_class_archive() -> None:
    """Run a Spark that notes the classes it has loaded when it ends."""
    os.environ["SPARK_HOME"] = str(lean_spark_home())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    made = ARCHIVE.with_suffix(f".{os.getpid()}")
    os.environ[MAKES_ARCHIVE] = str(made)
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    session.range(10).selectExpr("id % 2 AS key", "id").groupBy("key").count().collect()
    rows = session.readStream.format("rate-micro-batch").option("rowsPerBatch", "2").load()
    query = rows.writeStream.format("noop").trigger(once=True).start()
    query.awaitTermination(60)
    gateway = session.sparkContext._gateway
    session.stop()
    assert gateway is not None
    # With its input it ends, and writes.
    gateway.proc.stdin.close()
    gateway.proc.wait()
    made.rename(ARCHIVE)


if __name__ == "__main__":
    make_class_archive()
