"""Errors of arguments and results have the field, the type and the reason, and not the value."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Literal
from uuid import UUID

import msgspec
import pydantic
import pytest

from dayjob import App, BadPayload, JobState, Worker


class Color(Enum):
    RED = "red"


class Model(pydantic.BaseModel):
    pin: int

    @pydantic.field_validator("pin")
    @classmethod
    def check(cls, pin: int) -> int:
        raise ValueError(f"{pin} is no pin")


@dataclass
class Checked:
    text: str

    def __post_init__(self) -> None:
        raise ValueError(f"{self.text} is refused")


SECRET = "S3CRET - at `$.x`: 4711"

REFUSED: dict[str, tuple[Any, Any, str]] = {
    "union": (datetime | UUID, SECRET, "is none of datetime, UUID in argument `secret`"),
    "literal": (Literal["a", "b"], SECRET, "Invalid enum value in argument `secret`"),
    "enum": (Color, SECRET, "Invalid enum value in argument `secret`"),
    "type": (int, SECRET, "Expected `int`, got `str` in argument `secret`"),
    "pydantic": (Model, {"pin": 4711}, "ValidationError (pin: value_error) in argument `secret`"),
    "own check": (Checked, {"text": SECRET}, "ValueError in argument `secret`"),
    "in a list": (list[Literal["a"]], ["a", SECRET], "Invalid enum value in argument `secret[1]`"),
}


@pytest.mark.parametrize(("annotation", "value", "reason"), REFUSED.values(), ids=REFUSED.keys())
async def test_errors_of_arguments_have_the_field_and_the_reason_and_not_the_value(
    annotation: Any, value: Any, reason: str
) -> None:
    def take(secret: Any) -> Any: ...

    take.__annotations__ = {"secret": annotation, "return": dict[str, annotation]}
    payload = msgspec.json.encode({"secret": value})
    for values_in_errors in (False, True):
        app = App("memory://", values_in_errors=values_in_errors)
        task = app.task(name="take")(take)
        assert task.arguments is not None
        with pytest.raises(BadPayload) as stored:
            task.arguments.decode(payload)
        with pytest.raises(TypeError) as called:
            await task.aenqueue(value)
        with pytest.raises(BadPayload) as result:
            task.result.decode(payload)
        broker = await app.opened()
        await broker.enqueue("default", payload, task="take")
        await Worker(app).run_until_idle()
        [dead] = await broker.jobs(state=JobState.DEAD)
        await app.close()
        texts = ["".join(traceback.format_exception(each.value)) for each in (stored, called)]
        texts += ["".join(traceback.format_exception_only(result.value)), str(dead.last_error)]
        if values_in_errors:
            continue
        assert not any("S3CRET" in text or "4711" in text for text in texts), texts
        assert reason in str(stored.value)
        assert reason in str(called.value)
        assert reason in str(dead.last_error)


def test_the_option_puts_values_into_errors() -> None:
    app = App("memory://", values_in_errors=True)

    @app.task(name="pick")
    def pick(color: Literal["red"]) -> None: ...

    assert pick.arguments is not None
    with pytest.raises(BadPayload, match="'blue'"):
        pick.arguments.decode(b'{"color": "blue"}')


async def test_errors_of_other_values_that_may_be_secrets_do_not_have_them(memory_app: App) -> None:
    broker = await memory_app.opened()
    wrong: list[dict[str, Any]] = [
        {"payload": "S3CRET"},
        {"headers": {"authorization": "S3CRET\0"}},
        {"headers": ["S3CRET"]},
        {"dedup_key": "S3CRET\0"},
        {"dedup_key": "S3CRET" * 500},
        {"kv": {b"k": "S3CRET"}},
        {"kv": {"S3CRET": b""}},
    ]
    for given in wrong:
        with pytest.raises((TypeError, ValueError)) as refused:
            await broker.enqueue("q", **given)
        assert "S3CRET" not in str(refused.value), given
    await memory_app.close()


async def test_the_log_of_a_result_that_cant_be_stored_does_not_have_it(
    memory_app: App, caplog: pytest.LogCaptureFixture
) -> None:
    class Unstorable:
        def __repr__(self) -> str:
            return "S3CRET"

    @memory_app.task
    async def give() -> Any:
        return Unstorable()

    await give.aenqueue()
    await Worker(memory_app).run_until_idle()
    await memory_app.close()
    assert "the result, a Unstorable, can't be stored" in caplog.text
    assert "S3CRET" not in caplog.text
