"""Who is let in where ranks meet: whoever knows the key, of the same start."""

import os
import socket
import struct
import threading
import time

import pytest

from hpcsgd.comm.tcp import greeting, key
from hpcsgd.comm.tcp.greeting import Stranger
from hpcsgd.comm.tcp.key import key_of
from hpcsgd.errors import ConfigError
from tests.helpers.limits import HANG
from tests.tcp.harness import on_threads
from tests.tcp.meetings import BRIEF, SOON, free_port, local, meets, total


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
    thread.join(HANG)
    assert results == [2.0, 2.0]


@pytest.mark.parametrize("wrong", ["key", "start"])
def test_whoever_is_of_another_start_is_turned_away(wrong):
    """A rank that an earlier start of a requeued job left behind; or another user's."""
    place = local(free_port(), free_port())  # the second is nobody's
    other = {"HPCSGD_KEY": "x" * 16} if wrong == "key" else {"SLURM_RESTART_COUNT": "1"}
    started = [meets(0, 2, place, BRIEF), meets(1, 2, place, {**BRIEF, **other})]
    for thread, _ in started:
        thread.join(HANG)
    (first,), (second,) = (found for _, found in started)
    assert "rank 1 of 2 did not come" in first
    assert "turned away: 127.0.0.1, it has another key, or is of another" in first
    assert "found no rank 0" in second and "turned this rank away" in second
    assert "set HPCSGD_KEY" in second


def test_the_key_is_drawn_once_and_kept(tmp_path):
    home = {"XDG_CONFIG_HOME": str(tmp_path)}
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(key_of(home))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG)
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
    thread.join(HANG)
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
    thread.join(HANG)


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
    thread.join(HANG)
