"""Whether a thread works: its CPU time, what its process reads and writes."""

import os
import threading
import time
from collections import deque
from contextlib import suppress

SAMPLES = 4  # a second or so apart
SHARE = 0.05  # of a core; many ranks may share one
TRAFFIC = 1 << 16  # bytes; the samples themselves read some hundred


class Usage:
    """Samples of the thread that makes it."""

    def __init__(self) -> None:
        self._cpu_clock = _cpu_clock(threading.get_ident())
        self._samples: deque[tuple[float, float, int]] = deque(maxlen=SAMPLES)
        self.sample()

    def sample(self) -> None:
        """Note what has been used so far."""
        self._samples.append(self._read())

    def is_busy(self) -> bool:
        """True where the last seconds, up to now, saw work."""
        began, cpu, traffic = self._samples[0]
        now, cpu_now, traffic_now = self._read()
        share = (cpu_now - cpu) / max(now - began, 1e-9)
        return (
            share > SHARE or traffic_now - traffic > TRAFFIC or process_state() == "D"
        )

    def _read(self) -> tuple[float, float, int]:
        cpu = time.clock_gettime(self._cpu_clock) if self._cpu_clock else 0.0
        return time.perf_counter(), cpu, _traffic()


def process_state(pid: int | str = "self") -> str:
    """R, S, D, T, Z ...; "-" for one that is gone, "" where nobody can say."""
    if not os.path.exists("/proc/self/stat"):
        return ""
    with suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]
    return "-"


def node() -> str:
    """Equal for two processes that see each other in /proc."""
    with suppress(OSError):
        return f"{os.uname().nodename} {os.readlink('/proc/self/ns/pid')}"
    return f"{os.uname().nodename} {os.getpid()}"


def _cpu_clock(thread: int) -> int | None:
    # Not every system has clocks of other threads; traffic alone has to do there.
    if not hasattr(time, "pthread_getcpuclockid"):
        return None
    return time.pthread_getcpuclockid(thread)


def _traffic() -> int:
    """Bytes that this process has read and written."""
    with suppress(OSError, ValueError), open("/proc/self/io") as file:
        return sum(int(line.split()[1]) for line in list(file)[:2])
    return 0
