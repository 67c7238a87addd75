"""Names of tasks, and functions that can be tasks."""

from __future__ import annotations

import functools
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from dayjob import App, Broker, ConfigError, Context
from tests.support.app_runs import run, steady_id
from tests.support.bound import BOUND

SCRIPT = """\
from dayjob import App

app = App("sqlite:///{directory}/jobs.db")

@app.task
def note(text: str) -> None:
    with open(r"{directory}/noted", "a") as file:
        print(__name__, text, file=file)

class Box:
    @app.task
    @staticmethod
    def inside(number: int) -> None:
        note(f"inside {{number}}")

if __name__ == "__main__":
    note.enqueue("from the script")
    Box.inside.enqueue(7)
"""

WORKER = """\
import asyncio
from dayjob import Worker
from {module} import app
asyncio.run(Worker(app).run_until_idle())
"""


def python(directory: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=directory, capture_output=True, text=True, timeout=BOUND
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("file", "enqueue", "module"),
    [
        ("script.py", ["script.py"], "script"),
        ("package/script.py", ["-m", "package.script"], "package.script"),
        ("package/__main__.py", ["-m", "package"], "package.__main__"),
    ],
)
def test_a_worker_finds_the_tasks_of_a_script_that_ran_as_main(
    tmp_path: Path, file: str, enqueue: list[str], module: str
) -> None:
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(SCRIPT.format(directory=tmp_path))
    assert python(tmp_path, *enqueue) == ""
    python(tmp_path, "-c", WORKER.format(module=module))
    assert sorted((tmp_path / "noted").read_text().splitlines()) == [
        f"{module} from the script",
        f"{module} inside 7",
    ]


def top(value: int) -> None: ...


class Holder:
    got: ClassVar[list[Any]] = []

    def __init__(self, name: str) -> None:
        self.name = name

    def method(self, value: int) -> None:
        Holder.got.append((self.name, value))

    @staticmethod
    def static(value: int) -> None:
        Holder.got.append(value)

    @classmethod
    def of_class(cls, value: int) -> None:
        Holder.got.append((cls, value))


class Adder:
    def __init__(self) -> None:
        self.got: list[Any] = []

    async def __call__(self, ctx: Context, value: int) -> None:
        self.got.append((ctx.attempt, value))


def test_a_task_is_named_by_its_module_and_qualified_name(memory_app: App) -> None:
    def inner() -> None: ...

    assert memory_app.task(top).name == "tests.app.test_names.top"
    assert memory_app.task(Holder.static).name == "tests.app.test_names.Holder.static"
    assert memory_app.task(inner).name.endswith(
        "test_a_task_is_named_by_its_module_and_qualified_name.<locals>.inner"
    )
    assert memory_app.task(name="mine")(top).name == "mine"


def test_a_second_task_with_the_same_name_is_refused_with_both_functions(memory_app: App) -> None:
    memory_app.task(name="t")(top)
    with pytest.raises(
        ConfigError,
        match=r"a task named 't', tests.app.test_names.top \(.*test_names.py, line \d+\), and .*static",
    ):
        memory_app.task(name="t")(Holder.static)
    assert memory_app.tasks["t"].function is top


def test_a_function_defined_twice_is_refused(memory_app: App) -> None:
    def make(number: int) -> Callable[[], None]:
        def same() -> None:
            print(number)

        return same

    memory_app.task(make(1))
    with pytest.raises(ConfigError, match="already"):
        memory_app.task(make(2))


def test_a_module_that_is_imported_again_may_register_again(memory_app: App, tmp_path: Path) -> None:
    def load(scope: dict[str, Any]) -> None:
        exec(compile("def f(a: int) -> None: ...\n", str(tmp_path / "module.py"), "exec"), scope)
        memory_app.task(scope["f"])

    first: dict[str, Any] = {"__name__": "module"}
    load(first)
    load({"__name__": "module"})  # Imported again.
    load(first)  # Reloaded.
    assert list(memory_app.tasks) == ["module.f"]


def test_a_second_handler_for_a_queue_is_refused(memory_app: App) -> None:
    memory_app.handler(queue="raw")(top)
    with pytest.raises(ConfigError, match="already a handler for queue 'raw'"):
        memory_app.handler(queue="raw")(Holder.static)


def test_bound_methods_can_be_tasks(memory_app: App) -> None:
    Holder.got.clear()
    memory_app.task(Holder("box").method).enqueue(1)
    memory_app.task(Holder.static).enqueue(2)
    memory_app.task(Holder.of_class).enqueue(3)
    run(memory_app)
    assert Holder.got == [("box", 1), 2, (Holder, 3)]


def test_a_partial_a_lambda_and_a_callable_object_work_with_a_name(memory_app: App) -> None:
    got: list[Any] = []

    def take(kind: str, value: int, *, more: int = 0) -> None:
        got.append((kind, value, more))

    adder = Adder()
    memory_app.task(name="partial")(functools.partial(take, "bound", more=5)).enqueue(1)
    memory_app.task(name="lambda")(lambda value: got.append(value)).enqueue(2)
    memory_app.task(name="object")(adder).enqueue(3)
    run(memory_app)
    assert got == [("bound", 1, 5), 2]
    assert adder.got == [(1, 3)]


async def ticks() -> AsyncIterator[int]:
    yield 1


def numbers() -> Iterator[int]:
    yield 1


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (Holder.method, r"Holder.method.* is a method, and a worker has no 'self'"),
        (lambda: None, r"<lambda>.* has no name: pass name="),
        (functools.partial(top, 1), r"functools.partial.* has no name"),
        (Adder(), r"Adder.* has no name"),
        (Holder, r"on <class .*Holder'>: decorate a function"),
        (vars(Holder)["of_class"], r"on <classmethod.*: decorate a function"),
        ("text", r"on 'text': decorate a function"),
        (numbers, r"numbers.* is a generator"),
        (ticks, r"ticks.* is a generator"),
    ],
    ids=steady_id,
)
def test_a_function_that_a_worker_can_not_call_is_refused(memory_app: App, function: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        memory_app.task(function)


def test_a_task_can_not_be_registered_as_a_task(memory_app: App) -> None:
    with pytest.raises(ConfigError, match="decorate a function"):
        memory_app.task(memory_app.task(top))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queue": ""}, "queue name is empty"),
        ({"name": ""}, "task name is empty"),
        ({"priority": -1}, "priority=-1"),
        ({"max_attempts": 0}, "max_attempts=0"),
        ({"timeout": 0}, "timeout=0"),
        ({"timeout": "1"}, "timeout"),
        ({"pool": "fiber"}, "pool='fiber'"),
        ({"cancel": "never"}, "cancel='never'"),
        ({"retention": 5}, "retention=5"),
        ({"dedup": "sometimes"}, "dedup='sometimes'"),
        ({"retry": 3}, "retry=3"),
        ({"colour": "red"}, "unknown option 'colour'"),
    ],
    ids=str,
)
def test_an_invalid_option_is_refused_when_the_task_is_registered(
    memory_app: App, options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        memory_app.task(**options)(top)
    assert memory_app.tasks == {}


def test_a_task_has_the_name_and_docstring_of_its_function(memory_app: App) -> None:
    import inspect

    @memory_app.task
    def documented(value: int) -> str:
        """Documented."""
        return str(value)

    assert documented.__doc__ == "Documented."
    assert documented.__name__ == "documented"
    assert str(inspect.signature(documented)) == "(value: 'int') -> 'str'"
    assert documented(5) == "5"
    assert isinstance(memory_app.call(memory_app.opened), Broker)
