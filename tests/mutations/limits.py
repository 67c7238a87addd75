"""Mutations of flow control: limits, rates and turns."""

from __future__ import annotations

from tests.mutations.mutation import Mutation

_LOCAL = ("memory", "sqlite", "slatedb")
_POSTGRES = ("postgres",)
_REDIS = ("redis",)

_LIMITS = "engines/limits.py"
_FUNCTIONS = "engines/postgres/migrations/0007.sql"
_LUA = "engines/redis/lua/shared/*_limits.lua"

MUTATIONS = (
    Mutation(
        "the end of a run keeps its room", _LOCAL, _LIMITS,
        "            bucket.running = max(bucket.running - units, 0)\n", "",
        "conformance/test_limits.py",
    ),
    Mutation(
        "the end of a run wakes no line", _LOCAL, _LIMITS,
        "units, 0)\n            self._freed[name] += units", "units, 0)",
        "conformance/test_limits.py",
    ),
    Mutation(
        "a claim takes no room", _LOCAL, _LIMITS,
        "        bucket.running += units\n", "",
        "conformance/test_limits.py",
    ),
    Mutation(
        "a job overtakes the line", _LOCAL, _LIMITS,
        "return found is not None and found < place", "return found is not None and not place",
        "conformance/test_limits.py",
    ),
    Mutation(
        "a start takes no token of the rate", _LOCAL, _LIMITS,
        "bucket.tat = max(bucket.tat, self._now) + settings.cost(units)",
        "bucket.tat = max(bucket.tat, self._now)",
        "conformance/test_rates.py",
    ),
    Mutation(
        "a job in line holds the room of its other limits", _LOCAL, _LIMITS,
        "            if other != name:\n                self._freed[other] += units\n",
        "            assert other\n",
        "conformance/test_limits.py",
    ),
    Mutation(
        "the end of a run keeps its room", _POSTGRES, _FUNCTIONS,
        "CASE WHEN job.state = 'running' THEN (pair ->> 1)::bigint ELSE 0 END AS ended", "0::bigint AS ended",
        "conformance/test_limits.py",
    ),
    Mutation(
        "the end of a run wakes no line", _POSTGRES, _FUNCTIONS,
        "FROM dayjob.wake_lines(moment, names, freed, 10000000));",
        "FROM dayjob.wake_lines(moment, names, array_fill(0::bigint, ARRAY[cardinality(names)]), 10000000));",
        "conformance/test_limits.py",
    ),
    Mutation(
        "a claim takes no room", _POSTGRES, _FUNCTIONS,
        "used[place] := used[place] + candidate.units[part];", "used[place] := used[place];",
        "conformance/test_limits.py",
    ),
    Mutation(
        "a claim of jobs that all fit takes no room", _POSTGRES, _FUNCTIONS,
        "THEN bucket.total ELSE 0 END", "THEN 0 ELSE 0 END",
        "conformance/test_limits.py",
    ),
    Mutation(
        "jobs that all fit overtake the line", _POSTGRES, _FUNCTIONS,
        "WHERE jobs.state = 'limited' AND jobs.limited_by = ANY (names) AND jobs.queue = from_queue",
        "WHERE false",
        "conformance/test_limits.py",
    ),
    Mutation(
        "a claimed job overtakes the line", _POSTGRES, _FUNCTIONS,
        "                                < (candidate.priority, candidate.turn, candidate.id)\n"
        "                        THEN",
        "                                < (candidate.priority, candidate.turn, candidate.id) AND false\n"
        "                        THEN",
        "conformance/test_limits.py",
    ),
    Mutation(
        "a start takes no token of the rate", _POSTGRES, _FUNCTIONS,
        "+ dayjob.cost(candidate.units[part], pers[place], rates[place]);", "+ 0;",
        "conformance/test_rates.py",
    ),
    Mutation(
        "the end of a run keeps its room", _REDIS, _LUA,
        "bucket.running = max(bucket.running - limit[2], 0)", "bucket.running = max(bucket.running, 0)",
        "conformance/test_limits.py",
    ),
    Mutation(
        "the end of a run wakes no line", _REDIS, _LUA,
        "freed[name] = (freed[name] or 0) + units", "freed[name] = freed[name] or 0",
        "conformance/test_limits.py",
    ),
    Mutation(
        "a claim takes no room", _REDIS, _LUA,
        "    bucket.running = bucket.running + units\n", "",
        "conformance/test_limits.py",
    ),
    Mutation(
        "a claimed job overtakes the line", _REDIS, _LUA,
        "if not fits(bucket_of(name), settings_of(name), limit[2]) or is_behind(r, line) then",
        "if not fits(bucket_of(name), settings_of(name), limit[2]) then",
        "conformance/test_limits.py",
    ),
    Mutation(
        "a start takes no token of the rate", _REDIS, _LUA,
        "    if of and of.rate then\n      bucket.tat = max(bucket.tat, NOW) + cost(of, units)",
        "    if of and of.rate then\n      bucket.tat = max(bucket.tat, NOW)",
        "conformance/test_rates.py",
    ),
    Mutation(
        "hints hide a job whose insert is under way", _POSTGRES, _FUNCTIONS,
        "old.bound_xid <= pg_snapshot_xmin(seen) OR", "old.queue IS NOT NULL OR",
        "engines/postgres/test_limited_scan_hints.py::test_a_job_whose_insert_is_under_way_is_not_hidden",
    ),
    Mutation(
        "hints hide a job whose return was under way", _POSTGRES, _FUNCTIONS,
        "SELECT number, number FROM pg_snapshot_xip(hints.snapshot) AS number",
        "SELECT number, number FROM pg_snapshot_xip(hints.snapshot) AS number WHERE false",
        "engines/postgres/test_limited_scan_hints.py"
        "::test_a_job_whose_return_is_under_way_is_claimed_in_its_order",
    ),
    Mutation(
        "hints hide the late jobs that a claim left", _POSTGRES, _FUNCTIONS,
        "skipped AND priorities.priority <> ALL (unexamined) AS is_certain", "true AS is_certain",
        "engines/postgres/test_limited_scan_hints.py"
        "::test_more_late_jobs_than_are_tracked_are_claimed_in_their_order",
    ),
    Mutation(
        "hints stay when the clock went back", _POSTGRES, _FUNCTIONS,
        "started >= hints.raised_at AND started < hints.search_at", "started < hints.search_at",
        "engines/postgres/test_limited_scan_hints.py::test_a_hidden_job_is_found_without_the_hints",
    ),
)  # fmt: skip
