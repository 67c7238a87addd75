"""``make release-check``: build the distributions, and install them into fresh virtual environments.

The wheel and the source distribution are installed with no extra, with each extra of pyproject.toml alone,
and with all of them. In each environment a job runs and every module is imported. With all extras no module
may miss a package. A module that no extra alone can import must need two of them. The software bill of
materials is of the environment with ``all``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
SBOM = ROOT / "build" / "sbom.cdx.json"

NO_EXTRA = ""
ALL = "all"


EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
]
EVERYTHING = ",".join(EXTRAS)
INSTALLED = (NO_EXTRA, *EXTRAS, EVERYTHING)


def packages_of(extras: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the packages that extras name, as they are imported if that is the name of the project."""
    names = (re.match(r"[\w.-]+", requirement) for each in extras.values() for requirement in each)
    return {name[0].replace("-", "_") for name in names if name is not None}


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """Run a command outside of the source, unless ``cwd`` is given. Return its output, or exit with it."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ran = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    if ran.returncode:
        raise SystemExit(f"failed: {' '.join(map(str, command))}\n{ran.stdout}\n{ran.stderr}")
    return ran.stdout


def build() -> list[Path]:
    """Build both distributions. The source distribution is built first, and the wheel from it."""
    shutil.rmtree(DIST, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", DIST)
    built = sorted(DIST.iterdir())
    assert [path.suffix for path in built] == [".whl", ".gz"], built
    run(sys.executable, "-m", "twine", "check", "--strict", *built)
    return built


def install(distribution: Path, extra: str, folder: Path) -> Path:
    """Install into a new virtual environment. Return its interpreter."""
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    wanted = f"{distribution}[{extra}]" if extra else str(distribution)
    run(
        sys.executable,
        "-m",
        "pip",
        "--quiet",
        "--disable-pip-version-check",
        "--python",
        python,
        "install",
        wanted,
    )
    run(python, "-P", folder / "bin" / "dayjob", "--version", cwd=folder)
    return python


def examine(distribution: Path, extra: str, folder: Path) -> dict[str, str]:
    """Return the modules that the installation can't import, each with the package that it misses."""
    python = install(distribution, extra, folder)
    script = shutil.copy(ROOT / "tests" / "release" / "imports.py", folder)
    missing: dict[str, str] = json.loads(run(python, "-P", script, cwd=folder))
    if extra == ALL and distribution.suffix == ".whl":
        SBOM.parent.mkdir(exist_ok=True)
        run(sys.executable, "-m", "cyclonedx_py", "environment", python, "--output-reproducible", "-o", SBOM)
    print(f"  {distribution.name}{f'[{extra}]' if extra else ''}", flush=True)
    return missing


def unreachable(missing: Mapping[str, Mapping[str, str]], required: Collection[str]) -> dict[str, str]:
    """Return the modules that no extra alone can import, and that do not need two, with the missing packages.

    A module needs two extras if it misses with one of them another package than without, and an extra has it.
    """
    found = {}
    for module, package in missing[NO_EXTRA].items():
        by_extra = {extra: packages.get(module) for extra, packages in missing.items()}
        if None not in by_extra.values() and not ({*by_extra.values()} - {package}) & {*required}:
            found[module] = ", ".join(
                f"{each} with {extra or 'no extra'}" for extra, each in by_extra.items()
            )
    return found


def main() -> None:
    print("building")
    built = build()
    print("installing")
    with tempfile.TemporaryDirectory() as base, ThreadPoolExecutor(2) as pool:
        running = {
            (path, extra): pool.submit(examine, path, extra, Path(base, f"{path.suffix[1:]}-{number}"))
            for path in built
            for number, extra in enumerate(INSTALLED)
        }
        missing = {each: future.result() for each, future in running.items()}
    failures = []
    for path in built:
        everything = missing[path, EVERYTHING]
        failures += [
            f"{path.name}[{EVERYTHING}]: {module} misses {each}" for module, each in everything.items()
        ]
        alone = {extra: missing[path, extra] for extra in (NO_EXTRA, *EXTRAS)}
        found = unreachable(alone, packages_of(EXTRAS))
        failures += [f"{path.name}: {module} misses {packages}" for module, packages in found.items()]
    if failures:
        raise SystemExit("\n".join(["an extra lacks a package:", *failures]))
    print(
        f"{len(running)} installations of {', '.join(path.name for path in built)}; {SBOM.relative_to(ROOT)}"
    )


if __name__ == "__main__":
    main()
