"""Places where ranks of tests meet, and what they say that meet nobody."""

import socket
import threading

import numpy as np

from hpcsgd.comm.launched import Launched
from hpcsgd.comm.tcp.mesh import connect_all
from hpcsgd.comm.tcp.where import Port
from hpcsgd.errors import ConfigError, TransportError
from tests.helpers.limits import HANG

WORD = {"HPCSGD_KEY": "a word of sixteen letters or more"}
SOON = {**WORD, "HPCSGD_STORE_SECONDS": "600"}
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
        thread.join(HANG)
        assert not thread.is_alive()
    return [found[0] if found else "" for _, found in started]
