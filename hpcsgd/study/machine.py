"""The machine that a run met, and how busy it was."""

import os
import platform
import socket
import time
from typing import Any


def facts() -> dict[str, Any]:
    """What a line of a study says of its machine, now."""
    return {
        "host": socket.gethostname(),
        "processor": processor(),
        "cores": cores(),
        "load": [round(value, 2) for value in _load()],
        "began": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def cores() -> int:
    """How many this process may use."""
    return len(own_cores())


def own_cores() -> list[int]:
    """Those that this process may use, by their numbers."""
    try:
        return sorted(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return list(range(os.cpu_count() or 1))


def processor() -> str:
    """Its name, where the system says it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                name, _, value = line.partition(":")
                if name.strip() == "model name":
                    return value.strip()
    except OSError:
        pass  # not Linux
    return platform.machine()


def _load() -> tuple[float, ...]:
    try:
        return os.getloadavg()
    except OSError:  # a container that hides it
        return ()
