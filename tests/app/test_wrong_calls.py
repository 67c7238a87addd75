"""A wrong call fails at enqueue and stores nothing. A stored payload that does not fit is dead at once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

from dayjob import App, BrokerConfig, ConfigError, Job, JobState, PayloadTooLarge
from tests.support.app_runs import job, jobs, run


@dataclass
class Address:
    street: str


def make(app: App) -> Any:
    @app.task(name="send")
    def send(to: str, age: int = 0, *, home: Address | None = None, days: tuple[date, ...] = ()) -> None:
        pass

    return send


def loop() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


WRONG: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "missing": ((), {}, r"send: missing a required argument: 'to'"),
    "unexpected": (("a",), {"frm": "b"}, r"send: got an unexpected keyword argument 'frm'"),
    "too many": (("a", 1, 2), {}, r"send: too many positional arguments"),
    "twice": (("a",), {"to": "b"}, r"send: multiple values for argument 'to'"),
    "type": ((1,), {}, r"send: Expected `str`, got `int` in argument `to`"),
    "not a number": (("a",), {"age": "old"}, r"send: Expected `int`, got `str` in argument `age`"),
    "none": (("a", None), {}, r"send: Expected `int`, got `null` in argument `age`"),
    "nan": (("a", float("nan")), {}, r"send: .*argument `age`"),
    "nested": (("a",), {"days": ("x",)}, r"send: Invalid .*date.* in argument `days\[0\]`"),
    "in a dataclass": (("a",), {"home": Address(5)}, r"send: .* in argument `home.street`"),  # type: ignore[arg-type]
    "unencodable": (
        ("a",),
        {"age": object()},
        r"send: argument `age` can't be encoded: .* type object has no JSON form: use plain values",
    ),
    "a class": (("a",), {"home": Address}, r"send: argument `home` can't be encoded"),
    "cyclic": (("a",), {"days": loop()}, r"send: argument `days` can't be encoded"),
    "surrogate": (("\ud800",), {}, r"send: argument `to` can't be encoded"),
}


@pytest.mark.parametrize(("args", "kwargs", "text"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_call_is_a_type_error_with_the_task_and_the_argument(
    memory_app: App, args: tuple[Any, ...], kwargs: dict[str, Any], text: str
) -> None:
    send = make(memory_app)
    with pytest.raises(TypeError, match=text):
        send.enqueue(*args, **kwargs)
    with pytest.raises(TypeError, match=text):
        send.bind(*args, **kwargs)
    with pytest.raises(TypeError, match=text):
        send.using(priority=1).enqueue(*args, **kwargs)
    assert jobs(memory_app) == []


async def test_the_async_methods_refuse_wrong_calls_too(app: App) -> None:
    send = make(app)
    with pytest.raises(TypeError, match="'to'"):
        await send.aenqueue()
    with pytest.raises(TypeError, match="`to`"):
        await send.aenqueue_many([("a",), (1,)])
    assert await (await app.opened()).jobs() == []


def test_a_payload_over_the_limit_is_refused(url: str) -> None:
    with App(url, config=BrokerConfig(max_payload=100)) as app:
        send = make(app)
        with pytest.raises(PayloadTooLarge, match="100"):
            send.enqueue("x" * 100)
        with pytest.raises(PayloadTooLarge):
            send.enqueue_many([("a",), ("x" * 100,)])
        assert jobs(app) == []
        send.enqueue("x" * 80)
        assert len(jobs(app)) == 1


MISFITS = {
    "not JSON": b"{",
    "not an object": b"[1]",
    "type": b'{"to": 1}',
    "nested": b'{"to": "a", "home": {}}',
    "not UTF-8": b'{"to": "\xff"}',
}


@pytest.mark.parametrize("payload", MISFITS.values(), ids=MISFITS.keys())
def test_a_stored_payload_that_does_not_fit_is_dead_after_one_attempt(app: App, payload: bytes) -> None:
    make(app)

    async def enqueue() -> None:
        await (await app.opened()).enqueue("default", payload, task="send", max_attempts=5)

    app.call(enqueue)
    run(app)
    dead = job(app)
    assert (dead.state, dead.attempts) == (JobState.DEAD, 1)
    assert dead.last_error is not None
    assert dead.last_error.startswith("BadPayload: the payload doesn't fit the task 'send'")


def test_a_payload_whose_arguments_now_conflict_is_a_bad_payload(memory_app: App) -> None:
    @memory_app.task(name="t")
    def before(a: int, *rest: int, **more: int) -> None: ...

    before.enqueue(1, 2, b=3)
    deployed = App(memory_app.url)

    @deployed.task(name="t")
    def after(a: int, b: int = 0, *rest: int, **more: int) -> None: ...

    run(deployed)
    dead = job(deployed)
    assert dead.state is JobState.DEAD
    assert "multiple values for argument 'b'" in (dead.last_error or "")


def test_a_parameter_added_later_does_not_shift_the_arguments_after_it(memory_app: App) -> None:
    got: list[Any] = []

    @memory_app.task(name="t")
    def before(a: int, *rest: int) -> None: ...

    before.enqueue(1, 2, 3)
    deployed = App(memory_app.url)

    @deployed.task(name="t")
    def after(a: int, b: int = 0, *rest: int) -> None:
        got.append((a, b, rest))

    run(deployed)
    assert got == [(1, 0, (2, 3))]


# Options, and the methods of other libraries.


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ("delay", "delay"),
        ("queue", "queue"),
        ("priority", "priority"),
        ("countdown", "delay"),
        ("eta", "run_at"),
    ],
)
async def test_an_option_among_the_arguments_raises_with_the_place_for_it(
    memory_app: App, given: str, option: str
) -> None:
    send = make(memory_app)
    text = rf"send: {given}=5 is no argument .*: write using\({option}=...\).enqueue\(...\)"
    for call in (send.bind, send.using(tenant="a").bind):
        with pytest.raises(TypeError, match=text):
            call("ada", **{given: 5})
    with pytest.raises(TypeError, match=text):
        await send.aenqueue("ada", **{given: 5})


def test_an_option_of_a_raw_job_raises_with_the_place_for_it(memory_app: App) -> None:
    @memory_app.handler(queue="raw", name="raw")
    def raw(job: Job) -> None: ...

    with pytest.raises(TypeError, match=r"raw: delay=5 is no argument .*using\(delay=...\)"):
        raw.enqueue(b"data", delay=5)  # type: ignore[call-arg]


def test_a_parameter_with_the_name_of_an_option_is_an_argument(memory_app: App) -> None:
    @memory_app.task(name="send")
    def send(delay: int) -> None: ...

    with pytest.raises(TypeError, match="send: Expected `int`, got `str` in argument `delay`"):
        send.enqueue(delay="soon")  # type: ignore[arg-type]
    assert send.enqueue(delay=5).created


@pytest.mark.parametrize("method", ["delay", "apply_async", "send", "kiq", "defer", "schedule"])
def test_a_method_of_another_library_raises_with_the_method_to_use(memory_app: App, method: str) -> None:
    send = make(memory_app)
    for task in (send, send.using(priority=1)):
        with pytest.raises(AttributeError, match=rf"'{method}': write enqueue.*using\(delay=5, queue=...\)"):
            getattr(task, method)("ada")
        assert not hasattr(task, method)
        assert method not in dir(task)
        with pytest.raises(AttributeError, match=r"has no attribute 'colour'$"):
            _ = task.colour


@pytest.mark.parametrize(("given", "option"), [("countdown", "delay"), ("eta", "run_at")])
def test_an_option_of_another_library_raises_with_the_option_to_use(
    memory_app: App, given: str, option: str
) -> None:
    send = make(memory_app)
    with pytest.raises(TypeError, match=rf"using\({given}=...\): there is no such option: write {option}="):
        send.using(**{given: 5})
    send_by_name: Any = memory_app.send
    with pytest.raises(TypeError, match=rf"write {option}="):
        send_by_name("elsewhere", {}, **{given: 5})


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("max_retries", r"write max_attempts=\.\.\., which counts the first run too"),
        ("time_limit", r"write timeout=\.\.\."),
        ("bind", "write a first parameter annotated Context"),
        ("acks_late", "leave it out, as a job is always settled after its run"),
        ("colour", "the options are name, queue"),
    ],
)
def test_an_unknown_option_of_a_task_raises_with_the_option_to_use(
    memory_app: App, option: str, remedy: str
) -> None:
    with pytest.raises(ConfigError, match=f"unknown option '{option}': {remedy}"):
        memory_app.task(**{option: 1})(print)  # type: ignore[call-overload]


def test_a_number_is_no_retry_policy(memory_app: App) -> None:
    with pytest.raises(ConfigError, match=r"retry=3: pass a Retry, such as Retry.exponential\(attempts=3\)"):
        memory_app.task(retry=3, name="t")(lambda: None)  # type: ignore[call-overload]


def test_apps_and_handles_name_their_method_for_one_of_another_library(memory_app: App) -> None:
    handle = make(memory_app).enqueue("ada")
    cases: list[tuple[Any, str, str]] = [
        (memory_app, "enqueue", r"write task.enqueue\(...\)"),
        (memory_app, "send_task", "send"),
        (handle, "get", r"write result\(timeout=...\)"),
        (handle, "ready", r"write status\(\)"),
        (handle, "revoke", r"write cancel\(\)"),
    ]
    for owner, method, remedy in cases:
        with pytest.raises(AttributeError, match=rf"has no attribute '{method}': .*{remedy}"):
            getattr(owner, method)
        with pytest.raises(AttributeError, match=r"has no attribute 'colour'$"):
            _ = owner.colour


def test_names_of_other_libraries_do_not_slow_down_the_other_attributes(memory_app: App) -> None:
    """Python caches no attribute access of a class with ``__getattr__``."""
    send = make(memory_app)
    for owner in (memory_app, send, send.using(priority=1), send.job("0" * 32)):
        assert not hasattr(type(owner), "__getattr__")
