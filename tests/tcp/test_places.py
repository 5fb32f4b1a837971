"""Files and ports where ranks meet: of one start, of one owner, left by others."""

import json
import os
import socket
import threading
import time
from contextlib import closing, suppress

import pytest

from hpcsgd.comm.launched import Launched
from hpcsgd.comm.tcp import addresses, key
from hpcsgd.comm.tcp.doorman import Doorman
from hpcsgd.comm.tcp.mesh import connect_all
from hpcsgd.comm.tcp.where import SharedFile, ports_of, start_of
from tests.helpers.limits import HANG
from tests.tcp.harness import on_threads
from tests.tcp.meetings import (
    AT_ONCE,
    BRIEF,
    SOON,
    errors_of,
    free_port,
    local,
    meets,
    total,
)


def test_a_file_that_an_earlier_start_left(tmp_path, monkeypatch):
    """Of a rank 0 that is gone, of a port that is another's now, and of no sense."""
    place = SharedFile(tmp_path / "store")
    monkeypatch.setattr(addresses, "PATIENCE", 0.2)  # with one who says nothing
    with socket.create_server(("127.0.0.1", 0)) as others:
        for port in (free_port(), others.getsockname()[1]):
            left = {"addresses": [], "node": socket.gethostname(), "port": port}
            place.path.write_text(json.dumps({**left, "key": "00" * 32}))
            place.path.chmod(0o600)
            others.settimeout(5)
            late = threading.Thread(target=lambda: close_one(others))
            late.start()
            started = meets(1, 2, place, SOON)
            time.sleep(0.2)
            assert on_thread_0(place) == 2.0
            started[0].join(HANG)
            assert not started[1]
        place.path.write_text("{")
        place.path.chmod(0o600)
        assert on_threads(2, total, place, SOON) == [2.0] * 2


def close_one(server):
    with suppress(OSError):
        server.accept()[0].close()


def on_thread_0(place):
    """Rank 0 of two meets rank 1; what a sum would be."""
    found = connect_all(Launched(0, 2, "a test"), place, SOON)
    for sock in (*found.words.values(), *found.letters.values()):
        sock.close()
    return float(len(found.rows))


def test_two_jobs_at_once_on_one_node(tmp_path):
    """By files, and by ports of which the first is the other job's."""
    ports = [free_port() for _ in range(3)]
    results = {}

    def job(name, place, size, environ):
        results[name] = on_threads(size, total, place, environ)

    jobs = [
        ("a", SharedFile(tmp_path / "a"), 2, SOON),
        ("b", SharedFile(tmp_path / "b"), 3, SOON),
        ("c", local(*ports), 2, {**SOON, "SLURM_JOB_ID": "1"}),
        ("d", local(*ports), 3, {**SOON, "SLURM_JOB_ID": "2"}),
    ]
    threads = [threading.Thread(target=job, args=one) for one in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
    assert results == {"a": [2.0] * 2, "b": [3.0] * 3, "c": [2.0] * 2, "d": [3.0] * 3}


def test_a_port_that_another_program_has():
    with socket.create_server(("127.0.0.1", 0)) as other:
        place = local(other.getsockname()[1])
        (said,) = errors_of(place, BRIEF, (0, 2))
    assert f"rank 0 cannot listen at port {place.ports[0]}" in said


def test_the_likeliest_address_says_why_nobody_was_reached():
    """Others may be this node's own: a bridge of containers is on all nodes."""
    nobody = ["127.0.0.1", "[not an address]"]
    with pytest.raises(ConnectionRefusedError):
        addresses.reach(nobody, free_port(), lambda _: None)


def test_a_file_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    (said,) = errors_of(SharedFile(tmp_path / "file" / "store"), BRIEF, (0, 2))
    assert "rank 0 cannot write where it is" in said


def test_the_file_is_its_owners_alone(tmp_path):
    place = SharedFile(tmp_path / "store")
    thread, _ = meets(0, 2, place, AT_ONCE)
    for _ in range(100):
        if place.path.exists():
            assert place.path.stat().st_mode & 0o077 == 0
            break
        time.sleep(0.02)
    else:
        raise AssertionError("no file")
    thread.join(HANG)


def test_a_file_of_another_user_is_not_trusted(tmp_path, monkeypatch):
    """Who writes it could say anything to whoever believes it."""
    place = SharedFile(tmp_path / "store")
    place.path.write_text("{}")
    (said,) = errors_of(place, BRIEF, (1, 2))
    assert "chmod 600" in said
    place.path.chmod(0o600)
    monkeypatch.setattr(key.os, "geteuid", lambda: os.getuid() + 1)
    (said,) = errors_of(place, BRIEF, (1, 2))
    assert "belongs to another user" in said


def test_ports_are_of_one_start():
    one = ports_of(start_of({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}))
    other = ports_of(start_of({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1"}))
    assert one == ports_of(start_of({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}))
    assert not set(one) & set(other)
    assert all(20_000 <= port <= 32_767 for port in one + other)


def test_the_door_is_closed_when_all_are_there():
    place = local()
    on_threads(2, total, place, SOON)
    with closing(Doorman(1, place.ports[0], place.host)):  # nobody else has it
        pass
