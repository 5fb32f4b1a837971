"""Where ranks without MPI meet, who is let in, and what is said of others."""

import json
import os
import socket
import struct
import threading
import time
from contextlib import closing, suppress

import numpy as np
import pytest

from hpcsgd.comm.launched import Launched
from hpcsgd.comm.tcp import addresses, desk, greeting, key, mesh, visit
from hpcsgd.comm.tcp.doorman import Doorman
from hpcsgd.comm.tcp.greeting import Stranger
from hpcsgd.comm.tcp.key import key_of
from hpcsgd.comm.tcp.mesh import connect_all
from hpcsgd.comm.tcp.where import Port, SharedFile, ports_of, start_of
from hpcsgd.errors import ConfigError, TransportError
from tests.tcp.harness import on_threads

WORD = {"HPCSGD_KEY": "a word of sixteen letters or more"}
SOON = {**WORD, "HPCSGD_STORE_SECONDS": "20"}
BRIEF = {**WORD, "HPCSGD_STORE_SECONDS": "0.7"}
AT_ONCE = {**WORD, "HPCSGD_STORE_SECONDS": "0.3"}  # where nobody else is to come


def total(world):
    return float(world.sum(np.ones(1), "control")[0])


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def local(*ports):
    return Port("127.0.0.1", ports or (free_port(),))


def meets(rank, size, place, environ):
    """The error with which a rank ends that has nobody, or the wrong ones, to meet."""
    found = []

    def run():
        try:
            connect_all(Launched(rank, size, "a test"), place, environ)
        except (TransportError, ConfigError) as error:
            found.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def errors_of(place, environ, *ranks):
    """What (rank, size) each say that come to one place."""
    started = [meets(rank, size, place, environ) for rank, size in ranks]
    for thread, _ in started:
        thread.join(30)
        assert not thread.is_alive()
    return [found[0] if found else "" for _, found in started]


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
        thread.join(20)
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
    thread.join(10)
    assert "rank 2 (process 7 on h) ended before all ranks had met" in found[0]


def store_version():
    import hpcsgd

    return hpcsgd.__version__


def python_version():
    import platform

    return platform.python_version()


def test_strangers_keep_nobody_from_meeting():
    """A scanner of ports, one who says nothing, one who claims to be long."""
    place, results = local(), []
    thread = threading.Thread(
        target=lambda: results.extend(on_threads(2, total, place, SOON))
    )
    thread.start()
    for word in (b"GET / HTTP/1.1\r\n\r\n", b"", greeting.MAGIC):
        try:
            with socket.create_connection((place.host, place.ports[0]), 1) as sock:
                sock.sendall(word)
                sock.sendall(struct.pack("<I", 2**31))
        except OSError:
            time.sleep(0.02)
    thread.join(20)
    assert results == [2.0, 2.0]


@pytest.mark.parametrize("wrong", ["key", "start"])
def test_whoever_is_of_another_start_is_turned_away(wrong):
    """A rank that an earlier start of a requeued job left behind; or another user's."""
    place = local()
    other = {"HPCSGD_KEY": "x" * 16} if wrong == "key" else {"SLURM_RESTART_COUNT": "1"}
    started = [meets(0, 2, place, BRIEF), meets(1, 2, place, {**BRIEF, **other})]
    for thread, _ in started:
        thread.join(20)
    (first,), (second,) = (found for _, found in started)
    assert "rank 1 of 2 did not come" in first
    assert "turned away: 127.0.0.1, it has another key, or is of another" in first
    assert "found no rank 0" in second and "closed the connection" in second


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
            started[0].join(20)
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
        thread.join(30)
    assert results == {"a": [2.0] * 2, "b": [3.0] * 3, "c": [2.0] * 2, "d": [3.0] * 3}


def test_a_port_that_another_program_has():
    with socket.create_server(("127.0.0.1", 0)) as other:
        place = local(other.getsockname()[1])
        (said,) = errors_of(place, BRIEF, (0, 2))
    assert f"rank 0 cannot listen at port {place.ports[0]}" in said


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
    thread.join(20)


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


def test_the_key_is_drawn_once_and_kept(tmp_path):
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(key_of(home))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(found) == 8 and len(set(found)) == 1 and len(found[0]) == 64
    path = tmp_path / "hpcsgd" / "key"
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        key_of(home)


def test_keys_that_are_none(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="at least 16 characters"):
        key_of({"HPCSGD_KEY": "short"})
    (tmp_path / "hpcsgd").write_text("a file in the place of the folder")
    with pytest.raises(ConfigError, match="set HPCSGD_KEY"):
        key_of({"XDG_CONFIG_HOME": str(tmp_path)})
    monkeypatch.setattr(key, "PATIENCE", 0.05)
    (tmp_path / "x" / "hpcsgd").mkdir(parents=True)
    begun = tmp_path / "x" / "hpcsgd" / "key"
    begun.write_text("half")
    begun.chmod(0o600)
    with pytest.raises(ConfigError, match="remove it"):
        key_of({"XDG_CONFIG_HOME": str(tmp_path / "x")})


def test_the_key_never_travels():
    """Whoever listens to a greeting hears nothing that opens the door again."""
    left, right = socket.socketpair()
    heard = []

    class Ear:
        """A socket that writes down what is sent."""

        def __init__(self, sock):
            self.sock = sock

        def sendall(self, said):
            heard.append(bytes(said))
            self.sock.sendall(said)

        def recv(self, size):
            return self.sock.recv(size)

    word = os.urandom(32)
    thread = threading.Thread(target=greeting.let_in, args=(Ear(left), word, "s"))
    thread.start()
    greeting.ask_in(Ear(right), word, "s")
    thread.join(5)
    said = b"".join(heard)
    assert word not in said and word.hex().encode() not in said
    again, there = socket.socketpair()
    replayed = heard[1 if heard[0].startswith(greeting.MAGIC) else 0 :]
    again.settimeout(5)
    there.settimeout(5)
    thread = threading.Thread(target=lambda: [there.sendall(one) for one in replayed])
    thread.start()
    with pytest.raises((Stranger, TimeoutError)):
        greeting.let_in(again, word, "s")
    for one in (left, right, again, there):
        one.close()
    thread.join(5)


def test_a_false_rank_0_is_found_out():
    """It speaks as one, and answers what it has drawn itself."""
    there, here = socket.socketpair()

    def pretend():
        greeting._read(there, len(greeting.MAGIC) + greeting.DRAWN)
        there.sendall(greeting.MAGIC + os.urandom(greeting.DRAWN))
        there.sendall(greeting._read(there, greeting.DRAWN))  # as it came

    thread = threading.Thread(target=pretend)
    thread.start()
    with there, here, pytest.raises(Stranger, match="does not know the word"):
        greeting.ask_in(here, os.urandom(32), "s")
    thread.join(5)


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


def test_patience_is_a_number():
    with pytest.raises(ConfigError, match="must be seconds above 0"):
        desk.patience({"HPCSGD_STORE_SECONDS": "soon"})
