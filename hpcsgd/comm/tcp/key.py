"""The word by which ranks of one user know each other; nobody else can read it."""

import os
import secrets
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from hpcsgd.errors import ConfigError

VARIABLE = "HPCSGD_KEY"
LEAST = 16  # characters
BYTES = 32
PATIENCE = 5.0  # seconds for another rank to write what it has begun


def key_of(environment: Mapping[str, str]) -> bytes:
    """HPCSGD_KEY, else what is in a file of this user's, made by whoever is first."""
    said = environment.get(VARIABLE, "")
    if said:
        if len(said) < LEAST:
            raise ConfigError(
                f"{VARIABLE} must have at least {LEAST} characters, the same on all"
                " ranks; draw it anew for each job, or leave it out"
            )
        return said.encode()
    return _kept(_path(environment))


def check_own(path: Path) -> None:
    """Refuse a secret that others can read, or have written."""
    found = path.stat()
    if found.st_uid != os.geteuid():
        raise ConfigError(
            f"{path} belongs to another user, whom ranks would have to trust; name"
            " another place, or remove it"
        )
    if found.st_mode & 0o077:
        raise ConfigError(
            f"others than its owner may read {path}; chmod 600 {path}, or remove it"
        )


def _path(environment: Mapping[str, str]) -> Path:
    config = environment.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    return Path(config) / "hpcsgd" / "key"


def _kept(path: Path) -> bytes:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            _write(path)
        return _read(path)
    except OSError as error:
        raise ConfigError(
            f"ranks without MPI know each other by the file {path}, and"
            f" {error.strerror}; set {VARIABLE} to one long random word on all ranks"
        ) from error


def _write(path: Path) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(file, "w") as out:
        out.write(secrets.token_hex(BYTES))


def _read(path: Path) -> bytes:
    began = time.monotonic()
    while True:
        check_own(path)
        found = path.read_bytes()
        if len(found) == 2 * BYTES:
            return found
        if time.monotonic() - began > PATIENCE:
            raise ConfigError(f"{path} is not what was written there; remove it")
        time.sleep(0.02)
