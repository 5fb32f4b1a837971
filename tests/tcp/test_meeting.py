"""Where ranks without MPI meet, and what is said of those that do not."""

import socket
import time
from contextlib import closing

import pytest

from hpcsgd.comm.tcp import desk, greeting, mesh, visit
from hpcsgd.comm.tcp.doorman import Doorman
from hpcsgd.comm.tcp.where import Port, SharedFile, start_of
from hpcsgd.errors import ConfigError
from tests.helpers.limits import HANG
from tests.tcp.harness import on_threads
from tests.tcp.meetings import (
    AT_ONCE,
    BRIEF,
    SOON,
    WORD,
    errors_of,
    free_port,
    local,
    meets,
    total,
)


@pytest.mark.parametrize("kind", ["a port", "all networks", "a file"])
def test_ranks_meet(kind, tmp_path):
    place = {
        "a port": local(),
        "all networks": Port(socket.gethostname(), (free_port(),)),
        "a file": SharedFile(tmp_path / "not there yet" / "store"),
    }[kind]
    assert on_threads(3, total, place, SOON) == [3.0] * 3
    if kind == "a file":
        assert not place.path.exists(), "it is of no use to anybody any more"


def test_ranks_meet_by_ipv6():
    if not socket.has_dualstack_ipv6():
        pytest.skip("no IPv6 here")
    place = Port("::1", (free_port(),))
    assert on_threads(2, total, place, SOON) == [2.0] * 2


def test_one_rank_meets_itself():
    assert on_threads(1, total, local(), SOON) == [1.0]


def test_who_does_not_come_is_named_by_all():
    found = errors_of(local(), BRIEF, (0, 4), (2, 4))
    for said in found:
        assert "ranks 1, 3 of 4 did not come" in said and "within 0.7 s" in said


def test_a_rank_without_rank_0_says_where_it_looked(tmp_path):
    places = [local(), SharedFile(tmp_path / "none")]
    started = [meets(1, 2, place, AT_ONCE) for place in places]
    for thread, _ in started:
        thread.join(HANG)
    (first,), (second,) = (found for _, found in started)
    at = f"found no rank 0 at {places[0]} within 0.3 s (connection refused)"
    assert at in first and "HPCSGD_STORE=file:PATH" in first
    assert "there is no such file" in second


def test_a_name_that_nobody_knows(monkeypatch):
    monkeypatch.setattr(visit, "NAMELESS", 0.0)
    (said,) = errors_of(Port("no-such-host.invalid", (1,)), SOON, (1, 2))
    assert "name no-such-host.invalid of rank 0's node is not known" in said


def test_two_processes_with_one_number():
    found = errors_of(local(), SOON, (0, 3), (1, 3), (1, 3))
    assert all("two processes are rank 1 of 3" in said for said in found)


def test_ranks_of_two_sizes():
    found = errors_of(local(), SOON, (0, 2), (3, 4))
    assert all("rank 0 is one of 2 and" in said and "rank 3 of 4" in said
               for said in found)  # fmt: skip


def test_ranks_of_two_versions(monkeypatch):
    versions = iter(["1.0", "1.1"])
    real = mesh._row

    def differing(*arguments):
        return {**real(*arguments), "version": next(versions)}

    monkeypatch.setattr(mesh, "_row", differing)
    found = errors_of(local(), SOON, (0, 2), (1, 2))
    assert all("use one installation on all nodes" in said for said in found)


def test_a_rank_that_ends_while_others_wait_is_named():
    place = local()
    thread, found = meets(0, 3, place, SOON)
    for _ in range(100):
        try:
            sock = socket.create_connection((place.host, place.ports[0]))
            break
        except OSError:
            time.sleep(0.05)
    with sock:
        greeting.ask_in(sock, WORD["HPCSGD_KEY"].encode(), start_of(SOON))
        row = {"addresses": [], "named": True, "port": 1, "pid": 7, "host": "h"}
        row |= {"version": store_version(), "python": python_version()}
        greeting.say(sock, {"rank": 2, "size": 3, "row": row})
        time.sleep(0.2)
    thread.join(HANG)
    assert "rank 2 (process 7 on h) ended before all ranks had met" in found[0]


def store_version():
    import hpcsgd

    return hpcsgd.__version__


def python_version():
    import platform

    return platform.python_version()


def test_a_rank_0_that_falls_silent(monkeypatch):
    """Its network is down, or it is stopped: it has not left, and says nothing."""
    monkeypatch.setattr(greeting, "PATIENCE", 0.2)
    place, key = local(), AT_ONCE["HPCSGD_KEY"].encode()
    with closing(Doorman(2, place.ports[0], place.host)) as doorman:
        kept = []
        doorman.admit(
            key, start_of(AT_ONCE), lambda *one: kept.append(one), kept.append
        )
        (said,) = errors_of(place, AT_ONCE, (1, 2))
    assert "let in by rank 0 at 127.0.0.1 and has heard nothing" in said, kept


def test_patience_is_a_number():
    with pytest.raises(ConfigError, match="must be seconds above 0"):
        desk.patience({"HPCSGD_STORE_SECONDS": "soon"})
