"""Configuration: the documented defaults, and invalid values refused with the name of their field."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import asdict

from dayjob import Limit
from dayjob.errors import ConfigError
from dayjob.model.config import BrokerConfig, QueueConfig, Retention
from dayjob.model.retry import Retry

NO_DURATION: list[Any] = [
    -1,
    float("nan"),
    float("inf"),
    1e308,
    timedelta(seconds=-1),
    timedelta.max,
    "30",
    True,
]


def test_a_queue_has_the_documented_defaults() -> None:
    assert asdict(QueueConfig()) == {
        "max_attempts": 3,
        "lease": 30,
        "priority": 1000,
        "retry": Retry.exponential(base=1, cap=300),
        "retention": None,
        "limit": None,
        "fair": None,
        "weights": {},
        "max_pending": None,
    }


def test_a_broker_has_the_documented_defaults() -> None:
    assert asdict(BrokerConfig()) == {
        "default": QueueConfig(),
        "queues": {},
        "retention": Retention(done=None, dead=timedelta(days=7), cancelled=None),
        "reap_interval": 5,
        "promote_interval": 1,
        "sweep_interval": 60,
        "dead_after": 15,
        "max_payload": 1024 * 1024,
        "duties": True,
    }


def test_retention_keeps_the_dead_for_a_week_and_nothing_else() -> None:
    assert asdict(Retention()) == {"done": None, "dead": timedelta(days=7), "cancelled": None}


@pytest.mark.parametrize(
    ("config", "max_attempts"),
    [
        pytest.param(QueueConfig(retry=Retry.exponential(attempts=5)), 5, id="the policy's"),
        pytest.param(QueueConfig(retry=Retry.none()), 1, id="no retry"),
        pytest.param(QueueConfig(retry=lambda attempt, error: 1), 3, id="a function's"),
        pytest.param(QueueConfig(max_attempts=9), 9, id="given"),
        pytest.param(QueueConfig(max_attempts=9, retry=Retry.exponential(attempts=5)), 9, id="given wins"),
        pytest.param(QueueConfig(max_attempts=1, retry=Retry.exponential(attempts=5)), 1, id="given 1 wins"),
        pytest.param(QueueConfig(max_attempts=2**31 - 1), 2**31 - 1, id="the most"),
    ],
)
def test_max_attempts_default_to_those_of_the_policy(config: QueueConfig, max_attempts: int) -> None:
    assert config.max_attempts == max_attempts


def test_a_plain_function_may_be_the_retry_policy() -> None:
    assert QueueConfig(retry=lambda attempt, error: attempt * 2).policy.after(3, RuntimeError()) == 6


@pytest.mark.parametrize("lease", [0.000_001, 30, 30.5, timedelta(hours=1), timedelta(days=36_500)])
def test_a_lease_is_a_number_of_seconds_or_a_timedelta(lease: float | timedelta) -> None:
    assert QueueConfig(lease=lease).lease == lease


@pytest.mark.parametrize("value", [0, 0.5, timedelta(0), timedelta(days=1), None])
@pytest.mark.parametrize("field", ["done", "dead", "cancelled"])
def test_retention_takes_any_duration_or_none(field: str, value: float | timedelta | None) -> None:
    retention = Retention(**{field: value})
    assert getattr(retention, field) == value


def test_a_queue_without_its_own_config_has_the_default() -> None:
    email, default = QueueConfig(lease=5), QueueConfig(lease=7)
    config = BrokerConfig(default=default, queues={"email": email})
    assert config.queue("email") is email
    assert config.queue("other") is default


@pytest.mark.parametrize("config", [QueueConfig(), BrokerConfig(), Retention()])
def test_config_can_not_be_changed_after_it_was_checked(config: Any) -> None:
    with pytest.raises(AttributeError):
        setattr(config, config.__struct_fields__[0], 1)


NO_TIME_AT_ALL: list[Any] = [0, 0.0, timedelta(0), 1e-9, None]

BAD_QUEUE: dict[str, list[Any]] = {
    "max_attempts": [0, -1, 2**31, 1.5, True, "3"],
    "lease": NO_DURATION + NO_TIME_AT_ALL,
    "priority": [-1, 2**32, 1.5, True, "high", None],
    "retry": [None, 3, "exponential"],
    "retention": [timedelta(days=1), 60, {}],
    "limit": [1, "api", Limit("api", running=1), Limit(running=1, key=str)],
    "fair": ["queue", True],
    "weights": [None, {"a": 0}, {"a": 1001}, {"a": 1.5}, {"a": True}, {"a": 2}],  # The last one without fair.
    "max_pending": [0, -1, 1.5, True, "3"],
}

BAD_BROKER: dict[str, list[Any]] = {
    "default": [None, {}, BrokerConfig()],
    "queues": [
        None,
        [QueueConfig()],
        {"email": None},
        {"email": 30},
        {"email": {}},
        *({name: QueueConfig()} for name in ("", "q" * 201, "a\0b", "\ud800", 7, b"email")),
    ],
    "retention": [None, timedelta(days=1), 60],
    "reap_interval": NO_DURATION + NO_TIME_AT_ALL,
    "promote_interval": NO_DURATION + NO_TIME_AT_ALL,
    "sweep_interval": NO_DURATION + NO_TIME_AT_ALL,
    "dead_after": [*NO_DURATION, *NO_TIME_AT_ALL, 0.5],
    "max_payload": [-1, 1.5, True, "1 MiB", None],
    "duties": [None, 1, "yes"],
}

BAD_RETENTION: dict[str, list[Any]] = {"done": NO_DURATION, "dead": NO_DURATION, "cancelled": NO_DURATION}

CONFIGS: list[tuple[type[Any], dict[str, list[Any]]]] = [
    (QueueConfig, BAD_QUEUE),
    (BrokerConfig, BAD_BROKER),
    (Retention, BAD_RETENTION),
]


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [(config, field, value) for config, bad in CONFIGS for field, values in bad.items() for value in values],
)
def test_an_invalid_value_is_refused_with_the_name_of_its_field(
    config: type[Any], field: str, value: Any
) -> None:
    with pytest.raises(ConfigError, match=rf"\b{config.__name__}\.{field}\b"):
        config(**{field: value})


@pytest.mark.parametrize(("config", "bad"), CONFIGS)
def test_every_field_has_tests_with_invalid_values(config: type[Any], bad: dict[str, list[Any]]) -> None:
    assert set(bad) == set(config.__struct_fields__)


def test_the_error_of_a_refusal_has_the_value_and_the_queue() -> None:
    queues: dict[str, Any] = {"email": 30}
    with pytest.raises(ConfigError, match=re.escape("BrokerConfig.queues['email']=30")):
        BrokerConfig(queues=queues)
