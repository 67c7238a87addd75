"""graphile-worker, the fastest peer. Needs node and npm."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from benchmarks.child import Answer
from benchmarks.processes import run_command

_HERE = Path(__file__).parent
_MODULES = "node_modules"


class Missing(Exception):
    """graphile-worker cannot be installed; the message has the reason."""


class Graphile:
    """graphile-worker, installed in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def version(self) -> str:
        text = (self._folder / _MODULES / "graphile-worker" / "package.json").read_text()
        return str(json.loads(text)["version"])

    def drain(self, url: str, jobs: int, size: int) -> Answer:
        environment = {"NODE_PATH": str(self._folder / _MODULES), "NO_LOG_SUCCESS": "1"}
        return run_command(["node", str(_HERE / "graphile.cjs"), url, str(jobs), str(size)], environment)


def install(folder: Path) -> Graphile:
    """Install it into the folder with npm."""
    if not shutil.which("node") or not shutil.which("npm"):
        raise Missing("it needs node and npm, which are not installed")
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
        raise Missing(f"npm could not install it ({error})") from error
    return Graphile(folder)
