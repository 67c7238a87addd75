"""The classes of the driver's errors, and the errors that users get for them."""

from __future__ import annotations

import asyncio

import asyncpg

from dayjob.engines.base import Contended
from dayjob.engines.postgres.settings import PostgresSettings
from dayjob.errors import ConfigError, EngineUnavailable

_TRANSIENT = (
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
"""The next try may succeed."""

_COMMIT_UNKNOWN = (
    OSError,
    asyncio.TimeoutError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
)
"""The server may have committed before the error."""

_POOLED = (
    asyncpg.ProtocolViolationError,
    asyncpg.DuplicatePreparedStatementError,
    asyncpg.FeatureNotSupportedError,
    asyncpg.InvalidSQLStatementNameError,
)
"""The replies of a pooler in transaction mode to a client that relies on its session."""

_MISCONFIGURED = (
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.ClientConfigurationError,
)
"""Only another URL or another configuration of the server helps."""


def is_transient(error: BaseException) -> bool:
    return isinstance(error, _TRANSIENT) and not isinstance(error, _POOLED + _MISCONFIGURED)


def commit_unknown(error: BaseException) -> bool:
    """Whether the server may have committed before the error. Then only the stored reply decides."""
    return isinstance(error, _COMMIT_UNKNOWN)


def public_error(settings: PostgresSettings, error: Exception) -> Exception:
    """Return the error for users, with cause and remedy. An error of another origin is returned as it is."""
    if isinstance(error, asyncpg.LockNotAvailableError):
        return Contended(
            f"{settings.url}: the rows to write are locked by a transaction that is still open, such as one "
            "that has enqueued with the same dedup key: nothing was changed; try again when it has ended"
        )
    cause = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, _MISCONFIGURED):
        return ConfigError(
            f"{settings.url}: {cause}: check the user, the password and the database in the URL"
        )
    if isinstance(error, _POOLED):
        return ConfigError(
            f"{settings.url}: {cause}: a connection pooler without sessions is in between: "
            "add ?pgbouncer=1 to the URL"
        )
    if isinstance(error, asyncpg.TooManyConnectionsError):
        remedy = "raise the server's max_connections, or lower ?connections= or the number of processes"
    elif isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        remedy = "the server is read-only, as a standby is: point the URL at the primary"
    elif isinstance(
        error, asyncpg.UndefinedTableError | asyncpg.UndefinedFunctionError | asyncpg.InvalidSchemaNameError
    ):
        remedy = f"the schema {settings.schema!r} lacks a table or function: run  dayjob migrate"
    elif isinstance(error, asyncpg.InsufficientPrivilegeError):
        remedy = f"grant the role the schema {settings.schema!r}, or run  dayjob migrate  as its owner"
    elif isinstance(error, asyncpg.DiskFullError | asyncpg.OutOfMemoryError):
        remedy = "free disk space or memory on the server, then try again"
    elif not isinstance(error, _TRANSIENT):
        return error
    else:
        remedy = "check that the server runs and can be reached, then try again"
    return EngineUnavailable(f"{settings.url}: {cause}: {remedy}")
