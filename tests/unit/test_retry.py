"""Retry policies: exact delays, bounds, and refused values."""

from __future__ import annotations

from datetime import timedelta
from fractions import Fraction
from math import isfinite
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dayjob.errors import ConfigError
from dayjob.model.durations import LONGEST, SECOND
from dayjob.model.retry import Jitter, Retry, as_retry

BROKEN = RuntimeError("broken")
LONGEST_SECONDS = LONGEST / SECOND

fractions_of_one = st.floats(0, 1)
factors = st.one_of(
    st.floats(0, exclude_min=True, allow_infinity=False, allow_nan=False), st.integers(1, 10**308)
)
durations = st.one_of(
    st.floats(0, LONGEST_SECONDS),
    st.integers(0, int(LONGEST_SECONDS)),
    st.timedeltas(timedelta(0), timedelta(microseconds=LONGEST)),
)


def seconds(duration: float | timedelta) -> float:
    return duration.total_seconds() if isinstance(duration, timedelta) else float(duration)


def short(value: object) -> str:
    return ascii(value)[:30]


@pytest.mark.parametrize(
    ("policy", "delays"),
    [
        pytest.param(Retry.none(), [0, 0, 0], id="none"),
        pytest.param(Retry.fixed(), [1, 1, 1], id="fixed"),
        pytest.param(Retry.fixed(delay=2.5), [2.5, 2.5, 2.5], id="fixed delay"),
        pytest.param(Retry.fixed(delay=0), [0, 0, 0], id="fixed zero"),
        pytest.param(Retry.fixed(delay=timedelta(minutes=10)), [600, 600], id="fixed timedelta"),
        pytest.param(Retry.exponential(), [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300], id="exponential"),
        pytest.param(Retry.exponential(base=0.5, factor=3, cap=10), [0.5, 1.5, 4.5, 10, 10], id="factor"),
        pytest.param(Retry.exponential(base=8, factor=0.5), [8, 4, 2, 1, 0.5], id="shrinking"),
        pytest.param(Retry.exponential(base=7, factor=1), [7, 7, 7], id="factor one"),
        pytest.param(Retry.exponential(base=0), [0, 0, 0], id="base zero"),
        pytest.param(Retry.exponential(base=9, cap=5), [5, 5], id="cap below base"),
        pytest.param(Retry.exponential(cap=0), [0, 0], id="cap zero"),
        pytest.param(
            Retry.exponential(base=timedelta(minutes=1), cap=timedelta(minutes=3)),
            [60, 120, 180, 180],
            id="exponential timedeltas",
        ),
        pytest.param(Retry.linear(), [1, 2, 3, 4], id="linear"),
        pytest.param(Retry.linear(base=5), [5, 10, 15], id="step is base"),
        pytest.param(Retry.linear(base=2, step=5, cap=15), [2, 7, 12, 15, 15], id="linear cap"),
        pytest.param(Retry.linear(base=0, step=10), [0, 10, 20], id="linear from zero"),
        pytest.param(Retry.linear(base=5, step=0), [5, 5, 5], id="step zero"),
        pytest.param(
            Retry.linear(base=timedelta(seconds=1), step=timedelta(milliseconds=250)),
            [1, 1.25, 1.5, 1.75],
            id="linear timedeltas",
        ),
    ],
)
def test_delays_are_exact(policy: Retry, delays: list[float]) -> None:
    assert [policy.delay(attempt) for attempt in range(1, len(delays) + 1)] == delays
    assert [policy.after(attempt, BROKEN) for attempt in range(1, len(delays) + 1)] == delays


@pytest.mark.parametrize(
    ("policy", "attempts"),
    [
        (Retry.none(), 1),
        (Retry.fixed(), 3),
        (Retry.exponential(), 3),
        (Retry.linear(), 3),
        (Retry.custom(lambda attempt, error: 0), 3),
        (Retry.exponential(attempts=5), 5),
        (Retry.exponential(10_000), 10_000),
    ],
)
def test_a_policy_has_the_number_of_attempts(policy: Retry, attempts: int) -> None:
    assert policy.attempts == attempts


@settings(deadline=None)
@given(
    base=st.integers(0, 10**12), factor=st.fractions(0.01, 100), cap=st.integers(0, LONGEST),
    attempt=st.integers(1, 100),
)  # fmt: skip
def test_exponential_delay_is_base_times_factor_to_the_n_minus_1_up_to_the_cap(
    base: int, factor: Fraction, cap: int, attempt: int
) -> None:
    policy = Retry.exponential(base=base / SECOND, factor=float(factor), cap=cap / SECOND)
    exact = min(base * Fraction(float(factor)) ** (attempt - 1), Fraction(cap)) / SECOND
    assert policy.delay(attempt) == pytest.approx(float(exact), rel=1e-12)


@settings(deadline=None)
@given(base=durations, factor=factors, step=durations, cap=durations, attempt=st.integers(1, 10_000))
def test_no_attempt_up_to_10_000_overflows_or_passes_the_cap(
    base: float | timedelta, factor: float, step: float | timedelta, cap: float | timedelta, attempt: int
) -> None:
    policy = Retry(base=base, factor=factor, step=step, cap=cap)
    delay = policy.delay(attempt)
    assert isfinite(delay)
    assert 0 <= delay <= seconds(cap)


@settings(deadline=None)
@given(base=durations, factor=factors, cap=durations)
def test_the_first_delay_is_the_base_for_any_factor(
    base: float | timedelta, factor: float, cap: float | timedelta
) -> None:
    policy = Retry.exponential(base=base, factor=factor, cap=cap)
    assert policy.delay(1) == min(seconds(base), seconds(cap))


@pytest.mark.parametrize(
    ("factor", "last"), [(2, 300), (1e308, 300), (1.001, 300), (1, 1), (0.5, 0), (1e-308, 0), (5e-324, 0)]
)
def test_growth_ends_at_the_cap_and_decay_at_zero(factor: float, last: float) -> None:
    policy = Retry.exponential(attempts=10_000, base=1, factor=factor, cap=300)
    assert policy.delay(10_000) == last


@pytest.mark.parametrize(("jitter", "lowest"), [("none", 8), ("equal", 4), ("full", 0)])
@pytest.mark.parametrize(
    "make",
    [
        lambda jitter: Retry.exponential(base=8, jitter=jitter),
        lambda jitter: Retry.linear(base=8, jitter=jitter),
        lambda jitter: Retry.fixed(delay=8, jitter=jitter),
    ],
    ids=["exponential", "linear", "fixed"],
)
def test_jitter_spans_from_its_lower_bound_to_the_whole_delay(
    make: Any, jitter: Jitter, lowest: float
) -> None:
    policy: Retry = make(jitter)
    assert policy.delay(1, random=0.0) == lowest
    assert policy.delay(1, random=0.5) == (lowest + 8) / 2
    assert policy.after(1, BROKEN, random=1.0) == 8


@settings(deadline=None)
@given(base=durations, factor=factors, cap=durations, attempt=st.integers(1, 10_000), random=fractions_of_one)
def test_jitter_never_leaves_its_bounds(
    base: float | timedelta, factor: float, cap: float | timedelta, attempt: int, random: float
) -> None:
    def delay(jitter: Jitter) -> float:
        return Retry.exponential(base=base, factor=factor, cap=cap, jitter=jitter).delay(attempt, random)

    whole = delay("none")
    assert 0 <= delay("full") <= whole
    assert whole / 2 <= delay("equal") <= whole


def test_a_custom_function_gets_the_attempt_and_its_exception() -> None:
    seen: list[tuple[int, BaseException]] = []

    def record(attempt: int, error: BaseException) -> float:
        seen.append((attempt, error))
        return attempt * 10

    policy = Retry.custom(record, attempts=7)
    assert [policy.after(1, BROKEN), policy.after(6, BROKEN)] == [10, 60]
    assert seen == [(1, BROKEN), (6, BROKEN)]
    assert policy.attempts == 7


@pytest.mark.parametrize(
    ("chosen", "delay"),
    [
        (None, None),
        (0, 0),
        (1.5, 1.5),
        (-1, 0),
        (-float("inf"), 0),
        (LONGEST_SECONDS, LONGEST_SECONDS),
        (LONGEST_SECONDS + 1, LONGEST_SECONDS),
        (1e308, LONGEST_SECONDS),
        (float("inf"), LONGEST_SECONDS),
        (10**400, LONGEST_SECONDS),
    ],
    ids=short,
)
def test_a_custom_delay_of_none_means_no_retry_and_others_are_clamped(
    chosen: float | None, delay: float | None
) -> None:
    assert Retry.custom(lambda attempt, error: chosen).after(1, BROKEN) == delay


def test_a_custom_delay_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(ValueError, match="nan"):
        Retry.custom(lambda attempt, error: float("nan")).after(1, BROKEN)


@pytest.mark.parametrize(
    "policy",
    [
        Retry.fixed(give_up_on=(LookupError, TypeError)),
        Retry.exponential(give_up_on=(LookupError, TypeError)),
        Retry.linear(give_up_on=(LookupError, TypeError)),
        Retry.custom(lambda attempt, error: 1, give_up_on=(LookupError, TypeError)),
    ],
    ids=["fixed", "exponential", "linear", "custom"],
)
def test_exceptions_in_give_up_on_are_not_retried(policy: Retry) -> None:
    assert policy.after(1, LookupError()) is None
    assert policy.after(1, KeyError("a subclass")) is None
    assert policy.after(1, TypeError()) is None
    assert policy.after(1, ValueError()) == 1


NO_DURATION: list[Any] = [
    -1, -0.5, timedelta(microseconds=-1), float("nan"), float("inf"), LONGEST_SECONDS + 1, 1e308, 10**400,
    timedelta.max, "1", None, True,
]  # fmt: skip

BAD: dict[str, list[Any]] = {
    "attempts": [0, -1, True, 1.5, "3", None],
    "base": NO_DURATION,
    "factor": [0, -1, float("nan"), float("inf"), 10**400, True, "2", None],
    "step": NO_DURATION,
    "cap": NO_DURATION,
    "jitter": ["half", "", None, 1, []],
    "give_up_on": [ValueError, [ValueError], ("ValueError",), (int,), (ValueError(),), None],
    "function": [5, "f"],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in BAD.items() for value in values], ids=short
)
def test_an_invalid_value_is_refused_with_the_name_of_its_field(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"\b{field}="):
        Retry(**{field: value})


def test_every_field_has_tests_with_invalid_values() -> None:
    assert set(BAD) == set(Retry.__struct_fields__)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        pytest.param(lambda: Retry.fixed(attempts=0), "attempts", id="fixed attempts"),
        pytest.param(lambda: Retry.fixed(delay=-1), "delay", id="fixed delay"),
        pytest.param(lambda: Retry.exponential(attempts=0), "attempts", id="exponential attempts"),
        pytest.param(lambda: Retry.exponential(base=-1), "base", id="exponential base"),
        pytest.param(lambda: Retry.exponential(factor=0), "factor", id="exponential factor"),
        pytest.param(lambda: Retry.exponential(cap=-1), "cap", id="exponential cap"),
        pytest.param(lambda: Retry.linear(base=-1), "base", id="linear base"),
        pytest.param(lambda: Retry.linear(step=-1), "step", id="linear step"),
        pytest.param(lambda: Retry.custom(lambda attempt, error: 1, attempts=0), "attempts", id="custom"),
    ],
)
def test_a_constructor_refuses_an_invalid_argument_with_its_name(make: Any, field: str) -> None:
    with pytest.raises(ConfigError, match=rf"\b{field}="):
        make()


@pytest.mark.parametrize("attempt", [0, -1])
def test_attempts_count_from_1(attempt: int) -> None:
    with pytest.raises(ValueError, match="attempt="):
        Retry.exponential().delay(attempt)


def test_a_plain_function_becomes_a_custom_policy() -> None:
    policy = as_retry(lambda attempt, error: attempt * 2.0, "field")
    assert (policy.attempts, policy.after(4, BROKEN)) == (3, 8)


def test_a_policy_is_returned_unchanged() -> None:
    policy = Retry.linear()
    assert as_retry(policy, "field") is policy


@pytest.mark.parametrize("value", [None, 3, "exponential"])
def test_a_value_that_is_not_a_policy_is_refused_with_the_name_of_the_field(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"QueueConfig\.retry="):
        as_retry(value, "QueueConfig.retry")
