"""The checker finds every planted fault, and nothing in clean histories."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos import rules
from tests.chaos.record import FinalJob, FinalSchedule, Opened, Record, Run, Setup, read
from tests.chaos.rules import RULES, check
from tests.chaos.stories import BRIEF, KEPT, LEASE, Story

Plant = Callable[[Story], None]

PLANTED: list[tuple[rules.Rule, str, Plant]] = []
"""A rule, the job that breaks it, and the history. Each rule is here."""


def plant(rule: rules.Rule, id: str) -> Callable[[Plant], Plant]:
    def register(story: Plant) -> Plant:
        PLANTED.append((rule, id, story))
        return story

    return register


@plant(rules.accepted_jobs_are_accounted_for, "a")
def an_acknowledged_job_is_gone(story: Story) -> None:
    story.enqueue("a", "b")
    del story.final["a"]


@plant(rules.accepted_jobs_are_accounted_for, "a")
def a_done_job_of_a_kept_queue_is_gone(story: Story) -> None:
    story.enqueue("a")
    story.claim("a", 1)
    story.settle("a", 1)
    del story.final["a"]


@plant(rules.accepted_jobs_are_accounted_for, "a")
def a_pending_job_of_a_brief_queue_is_gone(story: Story) -> None:
    story.enqueue("a", queue=BRIEF)
    story.claim("a", 1)
    story.settle("a", 1, "release", "pending")
    del story.final["a"]


@plant(rules.accepted_jobs_are_accounted_for, "f")
def a_follow_up_is_gone(story: Story) -> None:
    story.enqueue("a")
    story.claim("a", 1)
    story.settle("a", 1, insert=("f",))
    story.claim("f", 2)
    del story.final["f"]


@plant(rules.accepted_jobs_are_accounted_for, "a")
def a_job_is_listed_twice(story: Story) -> None:
    story.enqueue("a")
    story.final["again"] = story.final["a"]


@plant(rules.no_job_comes_from_nowhere, "x")
def an_unknown_job(story: Story) -> None:
    story.final["x"] = FinalJob("x", KEPT, "pending", 0, 3)


@plant(rules.no_job_comes_from_nowhere, "b")
def a_job_is_stored_in_spite_of_the_answer(story: Story) -> None:
    story.enqueue("a", dedup_key="k")
    story.enqueue("b", created=False, holder="a", dedup_key="k")
    story.final["b"] = FinalJob("b", KEPT, "pending", 0, 3)


@plant(rules.ids_are_created_once, "a")
def an_id_is_created_twice(story: Story) -> None:
    story.enqueue("a", queue=BRIEF, reserved=True)
    story.claim("a", 1)
    story.settle("a", 1)
    story.enqueue("a", queue=BRIEF, reserved=True)


@plant(rules.finished_jobs_stay_finished, "a")
def a_done_job_is_pending_again(story: Story) -> None:
    story.enqueue("a")
    story.claim("a", 1)
    story.settle("a", 1)
    story.final["a"].state = "pending"


@plant(rules.finished_jobs_stay_finished, "a")
def a_done_job_is_claimed(story: Story) -> None:
    story.enqueue("a")
    story.claim("a", 1)
    story.settle("a", 1)
    story.claim("a", 2, 2)
    story.settle("a", 2)


@plant(rules.claims_are_settled_once, "a")
def a_claim_is_settled_twice(story: Story) -> None:
    story.enqueue("a")
    story.claim("a", 1)
    story.settle("a", 1, "nack", "pending")
    story.settle("a", 1)


@plant(rules.claims_are_settled_once, "a")
def a_job_is_acked_under_two_claims(story: Story) -> None:
    story.enqueue("a")
    story.claim("a", 1)
    story.end("a")
    story.claim("a", 2, 2)
    story.settle("a", 1)
    story.settle("a", 2)


@plant(rules.stale_claims_settle_nothing, "a")
def a_stale_nack_is_applied(story: Story) -> None:
    story.enqueue("a")
    story.claim("a", 1)
    story.end("a")
    story.claim("a", 2, 2)
    story.settle("a", 1, "nack", "pending")


@plant(rules.claims_exclude_each_other, "a")
def a_running_job_is_granted_again(story: Story) -> None:
    story.enqueue("a")
    story.claim("a", 1)
    story.claim("a", 2, 2)
    story.settle("a", 2)


@plant(rules.claims_exclude_each_other, "a")
def two_claims_have_one_epoch(story: Story) -> None:
    story.enqueue("a")
    story.claim("a", 1)
    story.end("a")
    story.claim("a", 1, 2)
    story.settle("a", 1)


@plant(rules.leases_are_respected, "a")
def a_lease_ends_too_early(story: Story) -> None:
    story.enqueue("a")
    story.claim("a", 1)
    story.now -= LEASE
    story.end("a")
    story.claim("a", 2, 2)
    story.settle("a", 2)


@plant(rules.lost_claims_have_a_cause, "a")
def a_live_claim_is_reported_lost(story: Story) -> None:
    story.enqueue("a")
    story.claim("a", 1)
    story.settle("a", 1, state=None)


@plant(rules.attempts_are_bounded, "a")
def a_job_has_more_runs_than_attempts(story: Story) -> None:
    story.enqueue("a")
    story.claim("a", 1, attempts=4)
    story.settle("a", 1)
    story.final["a"].attempts = 3


@plant(rules.attempts_are_bounded, "a")
def a_final_job_has_too_many_attempts(story: Story) -> None:
    story.enqueue("a")
    story.final["a"].attempts = 4


@plant(rules.attempts_are_bounded, "a")
def a_reaped_run_is_not_counted(story: Story) -> None:
    story.enqueue("a")
    story.claim("a", 1)
    story.end("a")
    story.claim("a", 2)
    story.settle("a", 2)


@plant(rules.attempts_are_bounded, "a")
def a_failure_is_not_counted(story: Story) -> None:
    story.enqueue("a")
    story.claim("a", 1)
    story.settle("a", 1, "nack", "pending")
    story.claim("a", 2)
    story.settle("a", 2)


@plant(rules.runs_are_not_endless, "a")
def a_job_crashes_its_worker_without_end(story: Story) -> None:
    story.enqueue("a")
    for epoch in range(1, 6):
        story.claim("a", epoch, min(epoch, 3))
        story.end("a")


@plant(rules.runs_are_once_per_claim, "a")
def a_handler_is_called_twice(story: Story) -> None:
    story.enqueue("a")
    story.claim("a", 1)
    story.run("a", 1)
    story.run("a", 1)
    story.settle("a", 1)


@plant(rules.dedup_keys_have_one_holder, "b")
def two_jobs_get_one_key(story: Story) -> None:
    story.enqueue("a", dedup_key="k")
    story.enqueue("b", dedup_key="k")
    story.claim("a", 1)
    story.claim("b", 2)


@plant(rules.dedup_keys_have_one_holder, "b")
def a_key_held_until_the_end_is_given_away_during_the_run(story: Story) -> None:
    story.enqueue("a", dedup_key="k", dedup_until="settled")
    story.claim("a", 1)
    story.enqueue("b", dedup_key="k", dedup_until="settled")
    story.settle("a", 1)


@plant(rules.dedup_keys_have_one_holder, "k")
def two_waiting_jobs_hold_one_key(story: Story) -> None:
    story.enqueue("a", dedup_key="k")
    story.enqueue("b", dedup_key="k", lost=True)
    story.final["b"] = FinalJob("b", KEPT, "pending", 0, 3, "k")


@plant(rules.dedup_answers_name_a_holder, "b")
def an_enqueue_is_swallowed_by_a_key_that_is_free(story: Story) -> None:
    story.enqueue("a", dedup_key="k")
    story.claim("a", 1)
    story.settle("a", 1)
    story.enqueue("b", created=False, holder="a", dedup_key="k")


@plant(rules.dedup_answers_name_a_holder, "b")
def an_enqueue_without_a_key_is_swallowed(story: Story) -> None:
    story.enqueue("a")
    story.enqueue("b", created=False, holder="a")


@plant(rules.effects_come_with_their_ack, "a")
def an_ack_without_its_follow_up(story: Story) -> None:
    story.enqueue("a")
    story.claim("a", 1)
    story.settle("a", 1, insert=("f",), kv=("x",))
    del story.final["f"]


@plant(rules.effects_come_with_their_ack, "a")
def a_kv_write_of_a_lost_ack(story: Story) -> None:
    story.enqueue("a")
    story.claim("a", 1)
    story.end("a")
    story.settle("a", 1, state=None, kv=("x",))
    story.kv.append("x")


@plant(rules.effects_come_with_their_ack, "a")
def half_of_an_ack_without_an_answer(story: Story) -> None:
    story.enqueue("a")
    story.claim("a", 1)
    story.settle("a", 1, insert=("f",), kv=("x",), lost=True)
    story.kv.append("x")


@plant(rules.effects_come_with_their_ack, "a")
def effects_of_an_ack_that_was_not_applied(story: Story) -> None:
    story.enqueue("a")
    story.claim("a", 1)
    story.settle("a", 1, kv=("x",), lost=True)
    story.kv.append("x")
    story.end("a")


@plant(rules.kv_comes_with_its_job, "a")
def a_job_without_its_kv(story: Story) -> None:
    story.enqueue("a", kv=["x"])
    story.kv.clear()


@plant(rules.kv_comes_with_its_job, "b")
def the_kv_of_a_duplicate(story: Story) -> None:
    story.enqueue("a", dedup_key="k")
    story.enqueue("b", created=False, holder="a", dedup_key="k", kv=["x"])
    story.kv.append("x")


@plant(rules.kv_comes_with_its_job, "a")
def kv_without_its_job(story: Story) -> None:
    story.enqueue("a", kv=["x"], lost=True)
    story.kv.append("x")


@plant(rules.batches_are_whole, "b")
def half_a_batch(story: Story) -> None:
    story.enqueue("a", "b", lost=True)
    story.final["a"] = FinalJob("a", KEPT, "pending", 0, 3)


def tick(story: Story, due: int, name: str) -> None:
    story.final[name] = FinalJob(name, KEPT, "pending", 0, 3, schedule="every", due_us=due)


@plant(rules.schedules_fire_once, "every")
def a_due_time_fires_twice(story: Story) -> None:
    story.schedules.append(FinalSchedule("every", 10, 10, 20))
    tick(story, 10, "a")
    tick(story, 20, "b")
    tick(story, 20, "c")


@plant(rules.schedules_fire_once, "every")
def a_due_time_does_not_fire(story: Story) -> None:
    story.schedules.append(FinalSchedule("every", 10, 10, 30))
    tick(story, 10, "a")
    tick(story, 30, "b")


@plant(rules.limits_are_held, "b")
def two_jobs_run_with_a_limit_of_one(story: Story) -> None:
    story.enqueue("a", "b")
    story.claim("a", 1, limits={"l:x": 1})
    story.claim("b", 2, limits={"l:x": 1})
    story.settle("a", 1)
    story.settle("b", 2)


@plant(rules.order_is_kept, "a")
def a_later_job_is_claimed_first(story: Story) -> None:
    story.enqueue("a")
    story.enqueue("b")
    story.claim("b", 1)
    story.claim("a", 2)


@plant(rules.order_is_kept, "b")
def a_less_urgent_job_is_claimed_first(story: Story) -> None:
    story.enqueue("a", priority=1000)
    story.enqueue("b", priority=10)
    story.claim("a", 1)


@plant(rules.deaths_are_announced, "a")
def a_job_is_dead_without_a_report(story: Story) -> None:
    story.enqueue("a")
    story.claim("a", 1)
    story.end("a", "dead", reported=False)


@plant(rules.deaths_are_announced, "a")
def observers_miss_a_death(story: Story) -> None:
    story.enqueue("a")
    story.claim("a", 1)
    story.settle("a", 1, "dead_letter", "dead")


@plant(rules.no_job_is_stuck, "a")
def a_limited_job_is_not_woken(story: Story) -> None:
    story.enqueue("a")
    story.final["a"].state = "limited"
    story.entries.append(Setup(kept=[KEPT], drained=True))


@plant(rules.counters_equal_the_listing, KEPT)
def a_counter_is_wrong(story: Story) -> None:
    story.enqueue("a")
    story.stats = {KEPT: {"pending": 2}}


def story() -> Story:
    return Story(ordered=[KEPT], limits={"l": 1})


@pytest.mark.parametrize(
    ("rule", "id", "fault"), PLANTED, ids=[fault.__name__ for _, _, fault in PLANTED]
)  # fmt: skip
def test_a_planted_fault_is_found_and_its_job_named(rule: rules.Rule, id: str, fault: Plant) -> None:
    planted = story()
    fault(planted)
    found = check(planted.history())
    assert (rule.__name__, id) in {(violation.rule, violation.id) for violation in found}, found
    assert f"{rule.__name__}: {id}: " in "\n".join(map(str, found))


def test_every_rule_has_a_planted_fault() -> None:
    assert {rule for rule, _, _ in PLANTED} == set(RULES)


# Clean histories, which look like faults.


CLEAN: list[Plant] = []


def clean(story: Plant) -> Plant:
    CLEAN.append(story)
    return story


@clean
def a_job_succeeds_with_its_effects(story: Story) -> None:
    story.enqueue("a", kv=["k"])
    story.claim("a", 1)
    story.run("a", 1)
    story.settle("a", 1, insert=("f",), kv=("x",))
    story.claim("f", 2)
    story.settle("f", 2)


@clean
def an_enqueue_without_an_answer_is_not_stored(story: Story) -> None:
    story.enqueue("a", "b", lost=True, kv=["x"])


@clean
def an_enqueue_without_an_answer_is_stored(story: Story) -> None:
    story.enqueue("a", "b", lost=True)
    for id in ("a", "b"):
        story.final[id] = FinalJob(id, KEPT, "pending", 0, 3)


@clean
def a_job_of_a_brief_queue_leaves_after_its_ack(story: Story) -> None:
    story.enqueue("a", queue=BRIEF)
    story.claim("a", 1)
    story.settle("a", 1)
    del story.final["a"]
    story.enqueue("a", queue=BRIEF, created=False)


@clean
def an_ack_without_an_answer_was_applied(story: Story) -> None:
    story.enqueue("a")
    story.claim("a", 1)
    story.settle("a", 1, insert=("f",), kv=("x",), lost=True)
    story.final["a"].state = "done"
    story.final["f"] = FinalJob("f", KEPT, "pending", 0, 3)
    story.kv.append("x")


@clean
def an_expired_claim_is_granted_again_and_its_late_ack_is_lost(story: Story) -> None:
    story.enqueue("a")
    story.claim("a", 1)
    story.end("a")
    story.claim("a", 2, 2)
    story.settle("a", 1, state=None, insert=("f",), kv=("x",))
    story.settle("a", 2)


@clean
def a_released_run_is_not_counted(story: Story) -> None:
    story.enqueue("a")
    for epoch in range(1, 9):
        story.claim("a", epoch)
        story.settle("a", epoch, "release", "pending")


@clean
def the_last_attempt_is_given_once_more_to_a_job_that_may_be_innocent(story: Story) -> None:
    story.enqueue("a")
    story.claim("a", 1, 3)
    story.end("a")
    story.claim("a", 2, 3)
    story.end("a", "dead")
    story.announce("a")


@clean
def a_dead_job_is_requeued(story: Story) -> None:
    story.enqueue("a")
    story.claim("a", 1, 3)
    story.settle("a", 1, "nack", "dead")
    story.announce("a")
    story.change("requeue", "a", 1, "pending")
    story.claim("a", 2, 1)
    story.settle("a", 2)


@clean
def a_key_is_free_after_the_claim(story: Story) -> None:
    story.enqueue("a", dedup_key="k")
    story.enqueue("b", dedup_key="k", created=False, holder="a")
    story.claim("a", 1)
    story.enqueue("c", dedup_key="k")
    story.settle("a", 1)


@clean
def a_key_is_free_after_a_cancel(story: Story) -> None:
    story.enqueue("a", dedup_key="k", dedup_until="settled")
    story.change("cancel", "a", "removed", "cancelled")
    story.enqueue("b", dedup_key="k", dedup_until="settled")


@clean
def jobs_under_a_limit_run_one_after_the_other(story: Story) -> None:
    story.enqueue("a", "b")
    for epoch, id in enumerate("ab", 1):
        story.claim(id, epoch, limits={"l:x": 1})
        story.settle(id, epoch)


@clean
def a_more_urgent_job_comes_while_another_runs(story: Story) -> None:
    story.enqueue("a")
    story.claim("a", 1)
    story.enqueue("b", priority=10)
    story.settle("a", 1)
    story.claim("b", 2, priority=10)


@clean
def a_schedule_fires(story: Story) -> None:
    story.schedules.append(FinalSchedule("every", 10, 10, 30))
    for due in (10, 20, 30):
        tick(story, due, f"tick {due}")


@clean
def due_times_are_missing_after_a_step_of_the_clock(story: Story) -> None:
    story.schedules.append(FinalSchedule("every", 10, 10, 100))
    tick(story, 10, "a")
    tick(story, 100, "b")
    story.fault(step=600.0)


@clean
def an_id_is_used_again_after_a_year_by_a_clock_that_is_set(story: Story) -> None:
    story.enqueue("a", queue=BRIEF, reserved=True)
    story.claim("a", 7)
    story.settle("a", 7)
    story.fault(step=31_536_000.0)
    story.enqueue("a", queue=BRIEF, reserved=True)
    story.claim("a", 3)
    story.settle("a", 3)


@clean
def a_write_is_lost_by_contract(story: Story) -> None:
    story.enqueue("safe")
    story.fault(10, lossy=True)
    story.enqueue("a")
    del story.final["a"]


@clean
def a_claim_is_lost_by_contract_and_with_it_the_room_of_its_limit(story: Story) -> None:
    story.enqueue("b")
    story.fault(10, lossy=True)
    story.enqueue("a")
    story.claim("a", 1, limits={"l:x": 1})
    del story.final["a"]
    story.now += 11
    story.claim("b", 2, limits={"l:x": 1})
    story.settle("b", 2)


@pytest.mark.parametrize("history", CLEAN, ids=[history.__name__ for history in CLEAN])
def test_a_clean_history_has_no_finding(history: Plant) -> None:
    replayed = story()
    history(replayed)
    assert check(replayed.history()) == []


def test_a_killed_process_need_not_announce_a_death() -> None:
    killed = story()
    observers_miss_a_death(killed)
    assert check(killed.history(closed=False)) == []


def test_a_job_outside_the_time_at_risk_is_still_checked() -> None:
    risky = story()
    a_write_is_lost_by_contract(risky)
    risky.now += 100
    risky.enqueue("b")
    del risky.final["b"]
    assert [violation.id for violation in check(risky.history())] == ["b"]


# The files.


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    record = Record(tmp_path, "one")
    record.write(Opened(pid=1, role="worker"))
    record.write(Run(id="a", claim="b"))
    record.close()
    path = tmp_path / "one~0000.record"
    path.write_bytes(path.read_bytes()[:-5])
    assert [type(entry) for entry in read(path)] == [Opened]
