"""What the driver's errors mean: the server can't be reached for now, or it can't be used as it is."""

from __future__ import annotations

import asyncio

import asyncpg

from dayjob.engines.base import Contended
from dayjob.engines.postgres.place import Place
from dayjob.errors import ConfigError, EngineUnavailable

_PASSING = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.CannotConnectNowError,
    asyncpg.AdminShutdownError,
    asyncpg.CrashShutdownError,
    asyncpg.TooManyConnectionsError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.LockNotAvailableError,
    asyncpg.QueryCanceledError,
    asyncpg.InvalidCachedStatementError,
    asyncpg.ObjectInUseError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.OperatorInterventionError,
    asyncpg.TargetServerAttributeNotMatched,
    asyncpg.InFailedSQLTransactionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.PostgresSystemError,
)
"""May be over at the next try."""

_UNCERTAIN = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
)
"""May have come after a commit."""

_POOLED = (
    asyncpg.ProtocolViolationError,
    asyncpg.DuplicatePreparedStatementError,
    asyncpg.FeatureNotSupportedError,
    asyncpg.InvalidSQLStatementNameError,
)
"""What a pooler in transaction mode answers to a client that relies on its session."""

_WRONG = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.ClientConfigurationError,
)
"""Nothing but another URL, or another set-up of the server, helps."""


def is_passing(error: BaseException) -> bool:
    return isinstance(error, _PASSING) and not isinstance(error, _POOLED + _WRONG)


def is_uncertain(error: BaseException) -> bool:
    """Whether the server may have committed before the error: then only the batch's token can tell."""
    return isinstance(error, _UNCERTAIN)


def described(place: Place, error: Exception) -> Exception:
    """The error for users, with the cause and the remedy; one that is none of the server's stays as it is."""
    if isinstance(error, asyncpg.LockNotAvailableError):
        return Contended(
            f"{place.url}: what was to be written is locked by a transaction that is still open, such as one "
            "that has enqueued with the same dedup key: nothing was changed; try again when it has ended"
        )
    cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, _WRONG):
        return ConfigError(f"{place.url}: {cause}: check the user, the password and the database in the URL")
    if isinstance(error, _POOLED):
        return ConfigError(
            f"{place.url}: {cause}: a pooler in between keeps no sessions: add ?pgbouncer=1 to the URL"
        )
    if isinstance(error, asyncpg.TooManyConnectionsError):
        remedy = "raise the server's max_connections, or lower ?connections= or the number of processes"
    elif isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        remedy = "the server is read-only, as a standby is: point the URL at the primary"
    elif isinstance(
        error, asyncpg.UndefinedTableError | asyncpg.UndefinedFunctionError | asyncpg.InvalidSchemaNameError
    ):
        remedy = f"the schema {place.schema!r} is not what it was: run  dayjob migrate"
    elif isinstance(error, asyncpg.InsufficientPrivilegeError):
        remedy = f"give the role the schema {place.schema!r}, or run  dayjob migrate  as its owner"
    elif isinstance(error, asyncpg.DiskFullError | asyncpg.OutOfMemoryError):
        remedy = "make room on the server, then try again"
    elif not isinstance(error, _PASSING):
        return error
    else:
        remedy = "check that the server runs and can be reached, then try again"
    return EngineUnavailable(f"{place.url}: {cause}: {remedy}")
