"""The parent process of one rank of `--ranks`, which records how the rank ended.

    python -I -S rank_wrapper.py COMMAND...

Run as a script, it imports next to nothing and costs next to no time. Launchers signal
the whole process group of a rank: this process ignores signals that are for the rank.
"""

import _signal

# Before any other import: an interrupt amid them ends this without a traceback.
_signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

RANKS = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")
FOR_THE_RANK = {
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
}


def main(command: list[str]) -> int:
    """Run `command` to its end and record how it ended; return its exit code.

    If a signal ended it, that signal ends this process, too.
    """
    # These signals are blocked until the rank has started, then ignored, so that
    # they do not end this process before the rank.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_THE_RANK)
    rank = os.posix_spawn(command[0], command, os.environ, setsigmask=before)
    for number in FOR_THE_RANK:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    code = os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1])
    _note(code)
    if code < 0:
        _end_by(-code)
    return code


def _note(code: int) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from hpcsgd.comm.rank_ends import note_end

    number = next((os.environ[name] for name in RANKS if name in os.environ), "0")
    note_end(int(number), code)


def _end_by(number: int) -> None:
    """End this process by signal `number`, by which the rank ended.

    Launchers report the signal. There is no second core file.
    """
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
