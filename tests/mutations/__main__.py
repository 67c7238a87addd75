"""``python -m tests.mutations``: apply the mutations one at a time to a copy, and find the test that notices.

For each mutation and engine, the tests run first that noticed it on another engine, then those named in the
table, then the conformance suite of the engine, then a short run under faults with its checker. A mutation
that no test notices survives, and the exit code is 1. ``RESULTS.md`` gets the results.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from tempfile import TemporaryDirectory

from dayjob.runtime.clock import SYSTEM
from tests.mutations.mutation import BROKER, ENGINES, ROOT, Mutation
from tests.mutations.results import PAGE, Kill, Kills, parse, record
from tests.mutations.table import GROUPS, of_group
from tests.support.servers import postgres

CHECKER = "chaos/test_short_runs.py"

TEST_LIMIT = 60
"""Seconds for one test. A mutation may block a test for ever."""

_FAILED = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", re.MULTILINE)
_PASSED, _TESTS_FAILED, _NO_TESTS = 0, 1, 5

_times = count(1_000_000_000)
"""Times of modification. Python recompiles a file whose time has changed."""


class Copy:
    """A copy of the repository. Tests in it import the package from it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
        for name in filter(None, names.split("\0")):
            if (ROOT / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name)
        self._environment = os.environ | {
            "PYTHONPATH": str(folder / "src"),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # They take half of the time of a short run.
        }
        self._check_import()

    def _check_import(self) -> None:
        command = [sys.executable, "-c", "import dayjob; print(dayjob.__file__)"]
        found = subprocess.run(
            command, cwd=self.root, env=self._environment, check=True, capture_output=True, text=True
        )
        if not Path(found.stdout).is_relative_to(self.root):
            raise SystemExit(
                f"the copy in {self.root} imports {found.stdout.strip()} instead of its own package"
            )

    @contextmanager
    def mutated(self, mutation: Mutation) -> Iterator[None]:
        file = mutation.file(self.root)
        before = file.read_bytes()
        try:
            mutation.apply(self.root)
            _touch(file)
            yield
        finally:
            file.write_bytes(before)
            _touch(file)

    def run(self, group: str, tests: Sequence[str]) -> str | None:
        """Run the tests that concern the group until one fails. Return that one."""
        engine = group if group in ENGINES else " and ".join(f"not {name}" for name in ENGINES[1:])
        command = [
            sys.executable, "-m", "pytest", "-x", "-q", "-rfE", "--no-header", "--tb=no",
            "-p", "no:cacheprovider", "-p", "pytest_asyncio.plugin", "-p", "pytest_timeout",
            f"--timeout={TEST_LIMIT}", "-k", engine,
            *(f"tests/{test}" for test in tests),
        ]  # fmt: skip
        environment = self._environment
        if group == "postgres":  # The runs share a server: each of them would take seconds to create its own.
            environment = environment | {postgres.ENVIRONMENT: postgres.server_url()}
        done = subprocess.run(
            command, cwd=self.root, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode in (_PASSED, _NO_TESTS):
            return None
        failed = _FAILED.search(done.stdout)
        if done.returncode != _TESTS_FAILED or failed is None:
            raise SystemExit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}\nno test ran to its end")
        return failed[1]


def _touch(file: Path) -> None:
    moment = next(_times)
    os.utime(file, (moment, moment))


def kill(copy: Copy, group: str, mutation: Mutation) -> Kill:
    started = SYSTEM.elapsed()
    with copy.mutated(mutation):
        phases = (noticed_by(mutation), mutation.tests.split(), ["conformance"], [CHECKER])
        runs = (copy.run(group, tests) for tests in phases if tests)
        test = next((failed for failed in runs if failed is not None), None)
    shown = None if test is None else test.removeprefix("tests/")
    return Kill(group, mutation.name, shown, SYSTEM.elapsed() - started)


def noticed_by(mutation: Mutation) -> list[str]:
    """Return the conformance tests that noticed the mutation on some engine, by the page of results."""
    known = parse(PAGE.read_text("utf-8")).values()
    tests = {kill.test.partition("[")[0] for kill in known if kill.mutation == mutation.name and kill.test}
    return sorted(test for test in tests if test.startswith("conformance/"))


def run_all(copies: Sequence[Copy], chosen: Sequence[tuple[str, Mutation]]) -> list[Kill]:
    """Return the results in order. Each copy has one mutation at a time."""
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def one(group: str, mutation: Mutation) -> Kill:
        copy = free.get()
        try:
            found = kill(copy, group, mutation)
        finally:
            free.put(copy)
        record(found)
        print(f"{group}: {mutation.name}: {found.test or 'SURVIVED'} ({found.seconds:.0f} s)", flush=True)
        return found

    with ThreadPoolExecutor(len(copies)) as pool:
        return list(pool.map(lambda pair: one(*pair), chosen))


def check_unmutated(copy: Copy, kills: Sequence[Kill]) -> None:
    """The tests that noticed must pass without a mutation. Otherwise their failure shows nothing."""
    for group in GROUPS:
        tests = sorted({kill.test for kill in kills if kill.group == group and kill.test is not None})
        failed = copy.run(group, tests) if tests else None
        if failed is not None:
            raise SystemExit(f"{group}: {failed} fails without a mutation")


def is_killed(known: Kills, group: str, mutation: Mutation) -> bool:
    found = known.get((group, mutation.name))
    return found is not None and found.test is not None


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--engine", choices=GROUPS, help=f"only this one; {BROKER}: the common parts")
    parser.add_argument("--only", default="", metavar="TEXT", help="only mutations with this in their name")
    parser.add_argument("--missing", action="store_true", help="only those that the page has not as killed")
    parser.add_argument("--jobs", type=int, default=2, help="mutations that are tried at a time")
    options = parser.parse_args(arguments)
    groups = [options.engine] if options.engine else list(GROUPS)
    known = parse(PAGE.read_text("utf-8")) if options.missing else {}
    chosen = [
        (group, each)
        for group in groups
        for each in of_group(group)
        if options.only in each.name and not is_killed(known, group, each)
    ]
    with TemporaryDirectory(prefix="dayjob-mutations-") as folder:
        copies = [Copy(Path(folder) / str(number)) for number in range(options.jobs)]
        kills = run_all(copies, chosen)
        check_unmutated(copies[0], kills)
    survived = [each for each in kills if each.test is None]
    print(f"{len(kills)} mutations, {len(survived)} survived")
    return int(bool(survived))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
