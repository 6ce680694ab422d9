"""How fast and how busy the machine is at the moment, so that a noisy figure can be recognised.

Linux only where it reads /proc; elsewhere the field is left out.
"""

import os
import platform
import tempfile
import time
from pathlib import Path

from benchmarks.harness.workload import zipf_keys

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
LOCAL_RESULTS = RESULTS / "local"
CALIBRATION_S = 0.1
IDLE_SAMPLE_S = 0.2
_KEYS = zipf_keys(20_000)


def calibration_per_s(duration_s: float = CALIBRATION_S) -> float:
    """Return the best rate of a plain dict count: the yardstick of one core's speed."""
    best = 0.0
    end_s = time.perf_counter() + duration_s
    while time.perf_counter() < end_s:
        counts: dict[str, int] = {}
        replies: list[tuple[str, int]] = []
        start_s = time.perf_counter()
        for key in _KEYS:
            count = counts.get(key, 0) + 1
            counts[key] = count
            replies.append((key, count))
        best = max(best, len(_KEYS) / (time.perf_counter() - start_s))
    return best


def _busy_jiffies() -> int | None:
    try:
        with open("/proc/stat", encoding="ascii") as file:
            fields = [int(field) for field in file.readline().split()[1:9]]
    except OSError:
        return None
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields
    return user + nice + system + irq + softirq + steal


def busy_cores(duration_s: float = IDLE_SAMPLE_S) -> float | None:
    """Sleep, and return how many cores were busy meanwhile: call it while your own work rests."""
    before = _busy_jiffies()
    start_s = time.perf_counter()
    time.sleep(duration_s)
    after = _busy_jiffies()
    if before is None or after is None:
        return None
    return (after - before) / os.sysconf("SC_CLK_TCK") / (time.perf_counter() - start_s)


def describe() -> dict[str, float | int | str]:
    """Return the machine's calibration, as a case result carries it."""
    fields: dict[str, float | int | str] = {
        "calibration_per_s": round(calibration_per_s()),
        "cpu_count": os.cpu_count() or 1,
        "python": platform.python_version(),
    }
    if (cores := busy_cores()) is not None:
        fields["busy_cores"] = round(cores, 2)
    return fields


def data_directory() -> tempfile.TemporaryDirectory[str]:
    """Return a directory on the repository's disk: in many systems /tmp is memory, where a
    durable write costs nothing."""
    LOCAL_RESULTS.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(
        prefix="data-", dir=LOCAL_RESULTS, ignore_cleanup_errors=True
    )
