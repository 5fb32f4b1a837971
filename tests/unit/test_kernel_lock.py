"""One process of a node compiles a kernel at a time, and no process waits for ever."""

import threading
import time
from pathlib import Path

from hpcsgd.backends.cuda.driver import LOCK, kernel_folder, one_at_a_time


def together(ranks, work):
    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_the_first_compiles_and_the_others_load(tmp_path):
    """As CuPy does: a kernel whose file is there is loaded."""
    folder, made = tmp_path / "kernels", []

    def work(rank):
        with one_at_a_time(folder):
            if not (folder / "kernel.cubin").exists():
                time.sleep(0.05)
                made.append(rank)
                (folder / "kernel.cubin").write_text("compiled")

    together(4, work)
    assert len(made) == 1


def test_a_process_that_stays_is_not_waited_for(tmp_path):
    with one_at_a_time(tmp_path), one_at_a_time(tmp_path, patience=0.1):
        entered = True
    assert entered


def test_a_folder_that_cannot_be_locked_is_entered(tmp_path):
    """CuPy then says what is wrong with it."""
    (tmp_path / "file").write_text("")
    with one_at_a_time(tmp_path / "file" / "folder"):
        entered = True
    assert entered
    (tmp_path / LOCK).mkdir()
    with one_at_a_time(tmp_path):
        assert entered


def test_the_folder_is_that_of_cupy():
    assert kernel_folder({"CUPY_CACHE_DIR": "/tmp/kernels"}) == Path("/tmp/kernels")
    assert kernel_folder({}) == Path.home() / ".cupy" / "kernel_cache"
