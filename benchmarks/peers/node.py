"""The peers that run in Node: graphile-worker and BullMQ. They need node and npm."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from benchmarks.child import Answer
from benchmarks.processes import Child, run_command

_HERE = Path(__file__).parent
_MODULES = "node_modules"


class Missing(Exception):
    """The packages cannot be installed; the message has the reason."""


class Node:
    """The packages, installed in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def version(self, package: str) -> str:
        text = (self._folder / _MODULES / package / "package.json").read_text()
        return str(json.loads(text)["version"])

    def graphile_drain(self, url: str, jobs: int, size: int) -> Answer:
        return run_command(*self._command("graphile.cjs", url, jobs, size))

    def load(self, kind: str, url: str, number: int, library: str) -> Child:
        """Start one side of an offered load."""
        return Child(*self._command("load.cjs", kind, url, number, library))

    def _command(self, program: str, *arguments: object) -> tuple[list[str], dict[str, str]]:
        environment = {"NODE_PATH": str(self._folder / _MODULES), "NO_LOG_SUCCESS": "1"}
        return ["node", str(_HERE / program), *map(str, arguments)], environment


def install(folder: Path) -> Node:
    """Install the packages into the folder with npm."""
    if not shutil.which("node") or not shutil.which("npm"):
        raise Missing("node and npm are not installed")
    folder.mkdir()
    shutil.copy(_HERE / "package.json", folder)
    try:
        subprocess.run(
            ["npm", "install", "--no-package-lock", "--no-audit", "--no-fund", "--prefer-offline"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise Missing(f"npm could not install the packages ({error})") from error
    return Node(folder)
