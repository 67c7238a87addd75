"""All mutations."""

from __future__ import annotations

from tests.mutations import broker, limits, local_engines, postgres, redis, slatedb, sqlite
from tests.mutations.mutation import BROKER, ENGINES, Mutation

GROUPS = (*ENGINES, BROKER)

MUTATIONS: tuple[Mutation, ...] = (
    *local_engines.MUTATIONS,
    *sqlite.MUTATIONS,
    *slatedb.MUTATIONS,
    *postgres.MUTATIONS,
    *redis.MUTATIONS,
    *limits.MUTATIONS,
    *broker.MUTATIONS,
)


def of_group(group: str) -> list[Mutation]:
    return [mutation for mutation in MUTATIONS if group in mutation.engines]
