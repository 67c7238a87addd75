"""The retry loop around an engine: tokens, back-off, the timeout, and settlements without a reply."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dayjob.broker import retrying_storage
from dayjob.broker.retrying_storage import RetryingStorage
from dayjob.engines.base import Contended, RetentionTimes, SettleOp, Token, Transient
from dayjob.errors import Closed, EngineFenced, EngineUnavailable
from dayjob.model.job import JobState
from dayjob.model.lifecycle import Transition
from dayjob.runtime.clock import yield_to_loop
from dayjob.runtime.signals import Signals, queue_topic

TIMEOUT = 10.0


class SteppingClock:
    """A clock that a wait moves at once."""

    def __init__(self) -> None:
        self.time = 0.0
        self.pauses: list[float] = []

    def now(self) -> int:
        return round(self.time * 1_000_000)

    def elapsed(self) -> float:
        return self.time

    async def wait(self, event: asyncio.Event, timeout: float | None) -> bool:
        assert timeout is not None
        self.pauses.append(timeout)
        self.time += timeout
        return False


class FakeEngine:
    """Settles claims and stores its replies by token, as an engine across a network does."""

    def __init__(self) -> None:
        self.timeout = TIMEOUT
        self.signals = Signals()
        self.failures: deque[Exception | Callable[[], Exception] | None] = deque()
        """The next tries fail with these; None lets a try succeed."""
        self.tokens: list[Token] = []
        self.batches: list[Sequence[SettleOp]] = []
        self.settled: set[tuple[bytes, bytes]] = set()
        self.replies: dict[bytes, Any] = {}

    def _reply(self, token: Token, apply: Callable[[], Any]) -> Any:
        self.tokens.append(token)
        failure = self.failures.popleft() if self.failures else None
        if callable(failure):
            failure = failure()
        lost = failure is not None and getattr(failure, "applied", False)
        if failure is None or lost:
            if token.key not in self.replies:
                self.replies[token.key] = apply()
            if failure is None:
                return self.replies[token.key]
        raise failure

    async def pause(self, queue: str, paused: bool, token: Token) -> str:
        reply: str = self._reply(token, lambda: queue)
        return reply

    async def settle(self, ops: Sequence[SettleOp], *, token: Token) -> list[JobState | None]:
        self.batches.append(ops)

        def apply() -> list[JobState | None]:
            states: list[JobState | None] = []
            for op in ops:
                current = (op.key, op.claim) not in self.settled
                self.settled.add((op.key, op.claim))
                states.append(JobState.DONE if current else None)
            return states

        reply: list[JobState | None] = self._reply(token, apply)
        return reply


def refused() -> Transient:
    return Transient("connection refused")


def lost(*, applied: bool = True) -> Transient:
    """The reply is lost, after the commit or before it."""
    error = Transient("connection lost", commit_unknown=True)
    error.applied = applied  # type: ignore[attr-defined]
    return error


def timed_out() -> Transient:
    error = Transient("no reply")
    error.__cause__ = TimeoutError()
    return error


def op(number: int, claim: bytes = b"1", transition: Transition = Transition.ACK) -> SettleOp:
    return SettleOp(number.to_bytes(16, "big"), claim, transition, RetentionTimes())


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def clock() -> SteppingClock:
    return SteppingClock()


@pytest.fixture
def storage(engine: FakeEngine, clock: SteppingClock) -> RetryingStorage:
    fake: Any = engine
    return RetryingStorage(fake, clock=clock)


async def pause(storage: RetryingStorage) -> str:
    engine: Any = storage.engine
    reply: str = await storage.write(lambda token: engine.pause("q", True, token))
    return reply


async def fail_to_settle(
    storage: RetryingStorage, engine: FakeEngine, *ops: SettleOp, applied: bool = True
) -> None:
    """Settle while each reply is lost, until the timeout."""
    engine.failures.append(lost(applied=applied))
    engine.failures.extend([refused()] * 1000)
    with pytest.raises(Transient):
        await storage.settle(ops)
    engine.failures.clear()


# Writes.


async def test_a_write_that_succeeds_is_tried_once(storage: RetryingStorage, engine: FakeEngine) -> None:
    assert await pause(storage) == "q"
    [token] = engine.tokens
    assert not token.repeated


async def test_a_failed_write_is_repeated_with_the_same_token(
    storage: RetryingStorage, engine: FakeEngine, clock: SteppingClock
) -> None:
    engine.failures.extend([refused(), refused(), refused()])
    assert await pause(storage) == "q"
    assert len(engine.tokens) == 4
    assert len(set(engine.tokens)) == 1
    assert not engine.tokens[-1].repeated  # No try can have been applied.
    for pause_, expected in zip(clock.pauses, (0.02, 0.04, 0.08), strict=True):
        assert expected / 2 <= pause_ <= expected * 1.5


async def test_after_an_unknown_commit_every_try_is_marked_as_repeated(
    storage: RetryingStorage, engine: FakeEngine
) -> None:
    engine.failures.extend([refused(), lost(), refused()])
    assert await pause(storage) == "q"
    assert [token.repeated for token in engine.tokens] == [False, False, True, True]
    assert len({token.key for token in engine.tokens}) == 1
    assert len({(token.client, token.slot, token.number) for token in engine.tokens}) == 1


async def test_a_write_whose_reply_was_lost_wakes_every_listener(
    storage: RetryingStorage, engine: FakeEngine
) -> None:
    with engine.signals.listen([queue_topic("any")]) as event:
        engine.failures.append(refused())
        await pause(storage)
        assert not event.is_set()
        engine.failures.append(lost())
        await pause(storage)
        assert event.is_set()


async def test_a_write_is_given_up_after_the_timeout(
    storage: RetryingStorage, engine: FakeEngine, clock: SteppingClock
) -> None:
    engine.failures.extend([refused()] * 1000)
    with pytest.raises(EngineUnavailable, match="connection refused"):
        await pause(storage)
    assert clock.time == pytest.approx(TIMEOUT)  # With a last try at the deadline.
    assert max(clock.pauses) <= 1.5


async def test_a_call_gets_one_try_without_any_time(
    storage: RetryingStorage, engine: FakeEngine, clock: SteppingClock
) -> None:
    engine.timeout = 0.0
    assert await pause(storage) == "q"
    engine.failures.append(refused())
    with pytest.raises(Transient):
        await pause(storage)
    assert clock.pauses == []


async def test_the_first_informative_cause_is_raised(storage: RetryingStorage, engine: FakeEngine) -> None:
    engine.timeout = 0.05
    engine.failures.extend([timed_out(), refused(), Transient("later"), timed_out(), *[timed_out()] * 100])
    with pytest.raises(Transient, match="connection refused"):
        await pause(storage)


async def test_a_repeated_try_that_hangs_is_cut_at_the_deadline() -> None:
    engine = FakeEngine()
    engine.timeout = 0.05
    fake: Any = engine
    storage = RetryingStorage(fake)
    tokens: list[Token] = []

    async def hang(token: Token) -> None:
        tokens.append(token)
        if len(tokens) == 1:
            raise refused()
        await asyncio.Event().wait()

    with pytest.raises(Transient, match="connection refused"):
        await storage.write(hang)
    assert len(tokens) == 2


@pytest.mark.parametrize(
    "error",
    [
        Contended("locked"),
        EngineUnavailable("full"),
        EngineFenced("taken over"),
        Closed("closed"),
        KeyError(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_a_final_error_is_raised_at_once(
    storage: RetryingStorage, engine: FakeEngine, clock: SteppingClock, error: Exception
) -> None:
    engine.failures.append(error)
    with pytest.raises(type(error)):
        await pause(storage)
    assert len(engine.tokens) == 1
    assert clock.pauses == []


async def test_a_final_error_after_a_transient_one_is_raised_at_once(
    storage: RetryingStorage, engine: FakeEngine
) -> None:
    engine.failures.extend([refused(), EngineFenced("taken over")])
    with pytest.raises(EngineFenced):
        await pause(storage)


# Reads.


async def test_a_read_is_repeated_until_the_timeout(storage: RetryingStorage, clock: SteppingClock) -> None:
    errors = deque([refused(), lost()])

    async def read() -> int:
        if errors:
            raise errors.popleft()
        return 7

    assert await storage.read(read) == 7
    errors.extend([refused()] * 1000)
    started = clock.time
    with pytest.raises(Transient):
        await storage.read(read)
    assert clock.time - started == pytest.approx(TIMEOUT)


# Slots.


async def test_a_slot_is_used_again_and_its_numbers_grow(
    storage: RetryingStorage, engine: FakeEngine
) -> None:
    await pause(storage)
    engine.failures.append(Contended("locked"))
    with pytest.raises(Contended):
        await pause(storage)
    await pause(storage)
    assert [token.slot for token in engine.tokens] == [0, 0, 0]
    assert engine.tokens[0].number < engine.tokens[1].number < engine.tokens[2].number
    assert len({token.key for token in engine.tokens}) == 3


async def test_the_slot_of_a_failed_write_is_used_again_first(
    storage: RetryingStorage, engine: FakeEngine
) -> None:
    """A try of the failed write may arrive late. It is refused once the slot has a later write."""
    go = asyncio.Event()

    async def wait(token: Token) -> None:
        await go.wait()

    slow = asyncio.ensure_future(storage.write(wait))
    await yield_to_loop()
    engine.failures.extend([lost(applied=False)] * 100)
    with pytest.raises(EngineUnavailable):
        await pause(storage)
    engine.failures.clear()
    in_doubt = engine.tokens[-1].slot
    go.set()
    await slow
    await pause(storage)
    assert engine.tokens[-1].slot == in_doubt


async def test_concurrent_writes_have_slots_of_their_own(storage: RetryingStorage) -> None:
    tokens: list[Token] = []
    go = asyncio.Event()

    async def wait(token: Token) -> None:
        tokens.append(token)
        await go.wait()

    writes = [asyncio.ensure_future(storage.write(wait)) for _ in range(3)]
    await yield_to_loop()
    assert sorted(token.slot for token in tokens) == [0, 1, 2]
    go.set()
    await asyncio.gather(*writes)
    await storage.write(wait)
    assert tokens[-1].slot in (0, 1, 2)


async def test_the_slot_of_an_unconfirmed_settlement_is_reserved_until_it_is_confirmed(
    storage: RetryingStorage, engine: FakeEngine
) -> None:
    await fail_to_settle(storage, engine, op(1))
    await pause(storage)
    assert engine.tokens[-1].slot == 1
    await storage.settle([op(1)])
    assert engine.tokens[-1].slot == 0
    await pause(storage)
    assert engine.tokens[-1].slot == 0


async def test_two_storages_are_two_clients(engine: FakeEngine) -> None:
    fake: Any = engine
    for _ in range(2):
        await pause(RetryingStorage(fake))
    assert engine.tokens[0].client != engine.tokens[1].client


# Unconfirmed settlements.


async def test_a_settlement_that_was_applied_unconfirmed_gets_its_first_reply(
    storage: RetryingStorage, engine: FakeEngine
) -> None:
    await fail_to_settle(storage, engine, op(1))
    sent = engine.tokens[0]
    assert await storage.settle([op(1)]) == [JobState.DONE]
    assert engine.tokens[-1].key == sent.key
    assert engine.tokens[-1].repeated
    assert await storage.settle([op(1)]) == [None]  # From now on it is a stale claim like any other.


async def test_a_settlement_that_was_not_applied_is_applied_by_the_repetition(
    storage: RetryingStorage, engine: FakeEngine
) -> None:
    await fail_to_settle(storage, engine, op(1), applied=False)
    assert await storage.settle([op(1)]) == [JobState.DONE]


async def test_a_confirmation_wakes_every_listener(storage: RetryingStorage, engine: FakeEngine) -> None:
    await fail_to_settle(storage, engine, op(1))
    with engine.signals.listen([queue_topic("any")]) as event:
        await storage.settle([op(1)])
        assert event.is_set()


async def test_a_neighbour_of_the_unconfirmed_batch_gets_the_reply_of_the_same_batch(
    storage: RetryingStorage, engine: FakeEngine
) -> None:
    await storage.settle([op(3)])
    await fail_to_settle(storage, engine, op(1), op(2), op(3))
    assert await storage.settle([op(2), op(4)]) == [JobState.DONE, JobState.DONE]
    assert [len(batch) for batch in engine.batches[-2:]] == [3, 1]
    assert await storage.settle([op(1)]) == [JobState.DONE]
    assert await storage.settle([op(3)]) == [None]
    assert [len(batch) for batch in engine.batches[-2:]] == [3, 1]  # Both were answered from that reply.


async def test_replies_keep_the_order_of_the_settlements(
    storage: RetryingStorage, engine: FakeEngine
) -> None:
    await storage.settle([op(9)])
    await fail_to_settle(storage, engine, op(1), op(2))
    states = await storage.settle([op(5), op(2), op(9), op(1), op(6)])
    assert states == [JobState.DONE, JobState.DONE, None, JobState.DONE, JobState.DONE]


async def test_several_unconfirmed_batches_are_repeated_oldest_first(
    storage: RetryingStorage, engine: FakeEngine
) -> None:
    await fail_to_settle(storage, engine, op(1))
    await fail_to_settle(storage, engine, op(2))
    first, second = sorted({token.number: token.key for token in engine.tokens}.items())
    engine.tokens.clear()
    assert await storage.settle([op(2), op(1)]) == [JobState.DONE, JobState.DONE]
    assert [token.key for token in engine.tokens] == [first[1], second[1]]


async def test_another_claim_or_transition_is_another_settlement(
    storage: RetryingStorage, engine: FakeEngine
) -> None:
    await fail_to_settle(storage, engine, op(1))
    keys = {token.key for token in engine.tokens}
    await storage.settle([op(1, claim=b"2")])
    await storage.settle([op(1, transition=Transition.NACK)])
    assert engine.tokens[-1].key not in keys
    assert engine.tokens[-2].key not in keys


async def test_of_two_settlements_of_one_claim_the_first_was_applied(
    storage: RetryingStorage, engine: FakeEngine
) -> None:
    await fail_to_settle(storage, engine, op(1), op(1))
    assert await storage.settle([op(1)]) == [JobState.DONE]


async def test_a_late_reply_is_kept_when_its_neighbours_fail(
    storage: RetryingStorage, engine: FakeEngine
) -> None:
    await fail_to_settle(storage, engine, op(1), op(2))
    assert await storage.settle([op(1)]) == [JobState.DONE]
    engine.failures.append(EngineUnavailable("full"))
    with pytest.raises(EngineUnavailable):
        await storage.settle([op(2), op(3)])
    assert await storage.settle([op(2), op(3)]) == [JobState.DONE, JobState.DONE]


async def test_the_oldest_late_replies_are_dropped(
    storage: RetryingStorage, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrying_storage, "_MAX_LATE_REPLIES", 2)
    await fail_to_settle(storage, engine, op(1), op(2), op(3), op(4))
    await storage.settle([op(4)])
    assert await storage.settle([op(2), op(3)]) == [None, JobState.DONE]


async def test_a_batch_stays_unconfirmed_while_its_repetition_fails(
    storage: RetryingStorage, engine: FakeEngine
) -> None:
    await fail_to_settle(storage, engine, op(1))
    engine.failures.extend([refused()] * 1000)
    with pytest.raises(Transient):
        await storage.settle([op(1)])
    engine.failures.clear()
    assert await storage.settle([op(1)]) == [JobState.DONE]
    assert len({token.key for token in engine.tokens}) == 1


async def test_a_settlement_that_was_certainly_not_applied_is_sent_anew(
    storage: RetryingStorage, engine: FakeEngine
) -> None:
    engine.failures.extend([refused()] * 1000)
    with pytest.raises(Transient):
        await storage.settle([op(1)])
    engine.failures.clear()
    assert await storage.settle([op(1)]) == [JobState.DONE]
    assert len({token.key for token in engine.tokens}) == 2
    assert {token.slot for token in engine.tokens} == {0}


async def test_a_final_error_after_an_unknown_commit_leaves_the_batch_unconfirmed(
    storage: RetryingStorage, engine: FakeEngine
) -> None:
    engine.failures.extend([lost(), EngineUnavailable("full")])
    with pytest.raises(EngineUnavailable, match="full"):
        await storage.settle([op(1)])
    assert await storage.settle([op(1)]) == [JobState.DONE]


async def test_a_contended_settlement_changed_nothing_and_is_not_kept(
    storage: RetryingStorage, engine: FakeEngine
) -> None:
    engine.failures.append(Contended("locked"))
    with pytest.raises(Contended):
        await storage.settle([op(1)])
    assert await storage.settle([op(1)]) == [JobState.DONE]
    assert len({token.key for token in engine.tokens}) == 2


async def test_a_write_that_is_contended_after_an_unknown_commit_keeps_its_token(
    storage: RetryingStorage, engine: FakeEngine
) -> None:
    """The lock may be that of the first try, whose commit is still under way."""
    engine.failures.extend([lost(applied=False), Contended("locked"), Contended("locked")])
    assert await pause(storage) == "q"
    assert len({token.key for token in engine.tokens}) == 1
    assert [token.repeated for token in engine.tokens] == [False, True, True, True]


async def test_a_settlement_that_is_contended_until_the_timeout_stays_unconfirmed(
    storage: RetryingStorage, engine: FakeEngine
) -> None:
    engine.failures.extend([lost(), *[Contended("locked")] * 1000])
    with pytest.raises(Transient, match="connection lost"):
        await storage.settle([op(1)])
    engine.failures.clear()
    engine.failures.append(Contended("locked"))
    with pytest.raises(Contended):
        await storage.settle([op(1)])
    assert await storage.settle([op(1)]) == [JobState.DONE]
    assert len({token.key for token in engine.tokens}) == 1


async def test_a_write_that_is_contended_before_any_commit_is_not_repeated(
    storage: RetryingStorage, engine: FakeEngine
) -> None:
    engine.failures.extend([refused(), Contended("locked")])
    with pytest.raises(Contended):
        await pause(storage)
    assert len(engine.tokens) == 2


async def test_two_settlements_that_confirm_the_same_batch_free_its_slot_once(
    storage: RetryingStorage, engine: FakeEngine
) -> None:
    await fail_to_settle(storage, engine, op(1), op(2))
    states = await asyncio.gather(storage.settle([op(1)]), storage.settle([op(2)]))
    assert [*states] == [[JobState.DONE], [JobState.DONE]]
    tokens: list[Token] = []

    async def keep(token: Token) -> None:
        tokens.append(token)
        await yield_to_loop()

    await asyncio.gather(*(storage.write(keep) for _ in range(3)))
    assert len({token.slot for token in tokens}) == 3


async def test_the_oldest_unconfirmed_batches_are_dropped_with_their_slots(
    storage: RetryingStorage, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrying_storage, "_MAX_UNCONFIRMED", 3)
    for number in range(5):
        await fail_to_settle(storage, engine, op(number))
    assert await storage.settle([op(number) for number in range(5)]) == [None, None, *[JobState.DONE] * 3]
    assert max(token.slot for token in engine.tokens) <= 4
