"""A Slurm that is played: its programs write down what they are given."""

import os
import subprocess
from pathlib import Path

from tests.helpers.limits import HANG

# Words end with a byte 0: nothing that a word may hold is one.
# Builtins alone: tests start hundreds of these.
RECORD = """#!/bin/bash
printf '%s\\0' "$@" >> "$FAKES/{name}.argv"
printf '\\1' >> "$FAKES/{name}.argv"
if [ -e "$FAKES/wanted" ]; then env -0 > "$FAKES/{name}.env"; fi
if [ -e "$FAKES/{name}.act" ]; then . "$FAKES/{name}.act"; fi
if [ -s "$FAKES/{name}.err" ]; then echo "$(< "$FAKES/{name}.err")" >&2; fi
if [ -s "$FAKES/{name}.out" ]; then echo "$(< "$FAKES/{name}.out")"; fi
read -r code 2> /dev/null < "$FAKES/{name}.code"
exit "${{code:-0}}"
"""
PROGRAMS = ("sbatch", "squeue", "sacct", "scancel", "srun", "scontrol", "sleep")


class Fakes:
    """Programs on PATH whose answers a test sets, and what they were called with."""

    def __init__(self, folder, programs=PROGRAMS):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for name in programs:
            self.add(name)

    def add(self, name):
        """One more program; where it is."""
        path = self.folder / name
        path.write_text(RECORD.format(name=name))
        path.chmod(0o755)
        return path

    def answer(self, name, out="", code=0, err="", act=""):
        """What it will say and do from now on."""
        for part, text in (("out", out), ("code", f"{code}\n"), ("err", err)):
            (self.folder / f"{name}.{part}").write_text(text)
        (self.folder / f"{name}.act").write_text(act)

    def calls(self, name):
        """The words of every call, in order."""
        path = self.folder / f"{name}.argv"
        if not path.exists():
            return []
        # Undecodable bytes stay what they are.
        text = os.fsdecode(path.read_bytes())
        return [call.split("\0")[:-1] for call in text.split("\1")[:-1]]

    def watch(self):
        """Write environments down, too."""
        (self.folder / "wanted").touch()

    def forget(self):
        """As if nothing had been called."""
        for path in self.folder.glob("*.argv"):
            path.unlink()

    def environment(self, name):
        """What the last call found in its environment, once `watch` was called."""
        pairs = os.fsdecode((self.folder / f"{name}.env").read_bytes()).split("\0")
        return dict(pair.split("=", 1) for pair in pairs if "=" in pair)

    @property
    def variables(self):
        """What makes a process find them."""
        path = f"{self.folder}{os.pathsep}{os.environ['PATH']}"
        return {"PATH": path, "FAKES": str(self.folder)}

    def play(self, text, job="42", restarts=0, **more):
        """Run a script as slurmd would; the finished process."""
        script = Path(self.folder / "script")
        script.write_text(text)
        own = {"SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": "n[1-2]"}
        own |= {"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}
        return subprocess.run(
            ["bash", str(script)],
            env={**os.environ, **self.variables, **own, **more},
            capture_output=True,
            text=True,
            errors="surrogateescape",
            stdin=subprocess.DEVNULL,
            timeout=HANG,
        )
