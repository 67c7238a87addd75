"""The actions of random programs: one Hypothesis strategy per action, with its weight.

An action is a name and options that do not depend on the state. ``pick`` is a number that selects one of the
jobs or claims that the action applies to.
"""

from __future__ import annotations

from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from dayjob import JobState, Limit, QueueConfig, Retention, Retry
from tests.support.arrange import quiet

RETRY = Retry.fixed(attempts=2, delay=5)
CONFIG = quiet(
    default=QueueConfig(max_attempts=2, lease=30, retry=RETRY),
    queues={
        "a": QueueConfig(max_attempts=2, retry=RETRY, fair="tenant", weights={"acme": 3}),
        "a:b": QueueConfig(
            max_attempts=1, lease=5, priority=2, retention=Retention(dead=20), limit=Limit(running=3)
        ),
        "kept for ever": QueueConfig(retention=Retention(done=5, dead=None, cancelled=50), max_pending=4),
        "not kept": QueueConfig(
            retention=Retention(done=0, dead=0, cancelled=0), retry=lambda n, exc: n - 1.0
        ),
    },
    retention=Retention(done=40, dead=60, cancelled=20),
)

LIMITS: dict[str, list[Limit | None]] = {
    "one": [Limit(running=1), Limit(running=2), Limit(running=4), None],
    "key": [Limit(running=1), Limit(running=3)],
    "key:b": [None, None, Limit(running=2)],
    "rate": [Limit(rate=1, per=5), Limit(rate=3, per=10, burst=3), Limit(running=2, rate=1, per=1, burst=2)],
}
"""The settings that a program gives its limits. The first ones at its beginning."""

QUEUES = ["a", "a:b", "kept for ever", "not kept"]
KEYS = [b"k", b"K", b"\x00"]
POOL = 61


def id_of(number: int) -> str:
    """Return an id of the pool. Ids are not enqueued in their order."""
    return str(UUID(int=number * 7919 % POOL))


ids = st.integers(0, POOL - 1).map(id_of)
queues = st.sampled_from(QUEUES)
times = st.sampled_from([0, 1e-6, 1, 4.999999, 5, 10, 20, 29.999999, 30, 60, 10_000])
steps = [1e-6, 16, 60, 3600, 86_400, 365 * 86_400]
priorities = st.sampled_from([0, 1, 1000, 2**32 - 1])
kv = st.none() | st.dictionaries(st.sampled_from(KEYS), st.sampled_from([b"", b"v", b"w"]), max_size=2)
picks = st.integers(0, 1000)
run_in = st.sampled_from([None, -100, 0, 1e-6, 5, 30])


@st.composite
def new_jobs(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the options of a job. ``run_in`` becomes a ``run_at`` relative to the clock."""
    options: dict[str, Any] = {"id": draw(ids), "queue": draw(queues)}
    match draw(st.integers(0, 4)):
        case 1:
            options["delay"] = draw(times)
        case 2:
            options["run_in"] = draw(run_in)
    if draw(st.integers(0, 2)) == 2:
        options["dedup_key"] = draw(st.sampled_from(["k", "K", "a:k"]))
        options["dedup_until"] = draw(st.sampled_from(["claimed", "settled"]))
        options["dedup_scope"] = draw(st.sampled_from(["queue", "queue", "global"]))
        options["dedup_for"] = draw(st.sampled_from([None, None, 5, 60]))
        if draw(st.booleans()):
            options["dedup"] = "latest"
            options["dedup_max_delay"] = draw(st.sampled_from([None, 0, 7, 60]))
    if draw(st.booleans()):
        options["payload"] = draw(st.sampled_from([b"", b"\x00\xff", b"data"]))
        options["task"] = draw(st.sampled_from(["", "t", "T"]))
        options["headers"] = draw(st.sampled_from([None, {}, {"h": "v", "é": ""}]))
        options["tenant"] = draw(st.sampled_from([None, "acme", "b"]))
        options["priority"] = draw(st.none() | priorities)
        options["max_attempts"] = draw(st.sampled_from([None, 1, 2, 12]))
        options["expires"] = draw(st.none() | times)
        options["kv"] = draw(kv)
    if draw(st.booleans()):
        options["limits"] = draw(
            st.lists(st.sampled_from(["one", "key:a", "key:b", "rate"]), min_size=1, max_size=3, unique=True)
        )
        options["units"] = {name.partition(":")[0]: draw(st.integers(1, 2)) for name in options["limits"]}
    return options


@st.composite
def settlements(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the verb, the claim to settle, and the arguments of the verb."""
    verb = draw(
        st.sampled_from(["ack", "nack", "nack", "dead_letter", "release", "snooze", "mark_cancelled"])
    )
    arguments: dict[str, Any] = {}
    match verb:
        case "ack" if draw(st.booleans()):
            arguments["result"] = draw(st.sampled_from([None, b"", b"result"]))
            arguments["enqueue"] = draw(st.lists(new_jobs(), max_size=2))
            arguments["kv"] = draw(kv)
        case "nack":
            arguments["error"] = draw(st.sampled_from(["boom", "", "nul \0"]))
            arguments["delay"] = draw(st.none() | times)
        case "dead_letter":
            arguments["reason"] = "hopeless"
        case "snooze":
            arguments["delay"] = draw(times)
    return {"verb": verb, "pick": draw(picks), "arguments": arguments, "used": draw(st.integers(0, 4))}


ACTIONS: dict[str, tuple[int, dict[str, st.SearchStrategy[Any]]]] = {
    "enqueue": (3, {"job": new_jobs()}),
    "enqueue_many": (3, {"jobs": st.lists(new_jobs(), max_size=6)}),
    "enqueue_again": (3, {"pick": picks, "queue": queues}),
    "claim": (
        2,
        {
            "queues": st.lists(queues, min_size=1, max_size=4),
            "limit": st.sampled_from([1, 2, 5, 0]),
            "lease": st.sampled_from([None, 5, 60]),
            "worker": st.sampled_from([None, "w1", "w2"]),
        },
    ),
    "claim_anything": (5, {"limit": st.integers(1, 6)}),
    "claim_any": (1, {"limit": st.integers(0, 6)}),
    "claim_and_settle": (3, {"batch": st.lists(settlements(), min_size=1, max_size=5)}),
    "settle": (6, {"settlement": settlements()}),
    "settle_many": (4, {"batch": st.lists(settlements(), max_size=5)}),
    "renew": (2, {"pick": picks, "lease": st.sampled_from([None, 1e-6, 5, 60])}),
    "renew_many": (1, {"picked": st.lists(picks, max_size=4), "lease": st.sampled_from([None, 60])}),
    "record_progress": (
        1,
        {"picked": st.lists(picks, max_size=3), "fraction": st.sampled_from([0.0, 0.5, 1.0])},
    ),
    "cancel": (3, {"pick": picks, "running": st.booleans()}),
    "requeue": (2, {"pick": picks}),
    "requeue_dead": (1, {"queue": queues}),
    "purge_dead": (1, {"queue": st.none() | queues}),
    "reschedule": (2, {"pick": picks, "run_in": run_in, "priority": st.none() | priorities}),
    "set_limit": (2, {"name": st.sampled_from(sorted(LIMITS)), "pick": picks}),
    "pause": (1, {"queue": queues}),
    "resume": (1, {}),
    "kv": (1, {"key": st.sampled_from(KEYS), "value": st.sampled_from([None, b"", b"x"])}),
    "pass_time": (3, {"seconds": times}),
    "step_clock": (2, {"seconds": st.sampled_from(steps), "back": st.booleans()}),
    "outlast_reservations": (2, {}),
    "duty": (
        6,
        {
            "duty": st.sampled_from(["promote", "promote", "reap", "sweep"]),
            "later": st.sampled_from([0, 5, 30, 60]),
        },
    ),
    "sweep_finished": (1, {"duty": st.sampled_from(["sweep_done", "sweep_dead"]), "age": times}),
    "reopen": (1, {}),
    "list_jobs": (
        2,
        {
            "queue": st.none() | queues,
            "state": st.none() | st.sampled_from(list(JobState)),
            "task": st.sampled_from([None, "t", "T", ""]),
            "after": st.none() | ids,
            "limit": st.sampled_from([100, 3, 1, 0]),
            "newest_first": st.booleans(),
        },
    ),
    "get_one": (1, {"pick": picks}),
}


@st.composite
def actions(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    name = draw(st.sampled_from([name for name, (weight, _) in ACTIONS.items() for _ in range(weight)]))
    return name, {option: draw(strategy) for option, strategy in ACTIONS[name][1].items()}
