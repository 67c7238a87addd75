"""The classes of the driver's errors, and the errors that users get for them."""

from __future__ import annotations

import asyncpg

from dayjob.engines.base import Contended, Transient
from dayjob.engines.postgres.settings import PostgresSettings
from dayjob.errors import ConfigError, EngineUnavailable

_COMMIT_UNKNOWN = (
    OSError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
)
"""The server may have committed before the error. Then only the stored reply decides."""

_TRANSIENT = (
    *_COMMIT_UNKNOWN,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.SerializationError,
    asyncpg.DeadlockDetectedError,
    asyncpg.LockNotAvailableError,
    asyncpg.InvalidCachedStatementError,
    asyncpg.ObjectInUseError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InFailedSQLTransactionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.PostgresSystemError,
)
"""The next try may succeed. A timeout is an ``OSError``, a shutdown an intervention of the operator."""

NOTIFICATIONS_REMEDY = (
    "end the session that listens inside an open transaction: find it in pg_stat_activity as "
    "'idle in transaction'"
)

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
    expected = isinstance(error, _TRANSIENT) and not isinstance(error, _POOLED + _MISCONFIGURED)
    return expected or is_notification_queue_full(error)


def token_is_stored(error: Exception) -> bool:
    """Whether a write failed because an earlier try of it has committed meanwhile."""
    return isinstance(error, asyncpg.UniqueViolationError) and error.table_name == "replies"


def is_notification_queue_full(error: BaseException) -> bool:
    """Whether a notification found no room. The text of the error may be translated."""
    return isinstance(error, asyncpg.ProgramLimitExceededError) and error.server_source_filename == "async.c"


def public_error(
    settings: PostgresSettings, error: Exception, *, sent: bool = True, wait_for_locks: bool = True
) -> Exception:
    """Return the error for users, with cause and remedy. An error of another origin is returned as it is.

    ``sent``: the statement may have reached the server. ``wait_for_locks``: a lock is a transient error.
    """
    if isinstance(error, asyncpg.LockNotAvailableError):
        text = (
            f"{settings.url}: the rows to write are locked by a transaction that is still open, such as one "
            "with the same id or dedup key: nothing was changed; try again when it has ended"
        )
        return Transient(text) if wait_for_locks else Contended(text)
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
    remedy = _remedy(settings, error)
    if is_transient(error):
        return Transient(
            f"{settings.url}: {cause}: {remedy or 'check that the server runs and can be reached'}",
            commit_unknown=sent and isinstance(error, _COMMIT_UNKNOWN),
        )
    return error if remedy is None else EngineUnavailable(f"{settings.url}: {cause}: {remedy}")


def _remedy(settings: PostgresSettings, error: Exception) -> str | None:
    if isinstance(error, asyncpg.TooManyConnectionsError):
        return "raise the server's max_connections, or lower ?connections= or the number of processes"
    if isinstance(error, asyncpg.ReadOnlySQLTransactionError):
        return "the server is read-only, as a standby is: point the URL at the primary"
    if isinstance(
        error,
        asyncpg.UndefinedTableError
        | asyncpg.UndefinedColumnError
        | asyncpg.UndefinedFunctionError
        | asyncpg.InvalidSchemaNameError,
    ):
        return (
            f"the schema {settings.schema!r} lacks it: upgrade dayjob if a newer one has migrated the "
            "schema, else run  dayjob migrate"
        )
    if isinstance(error, asyncpg.InsufficientPrivilegeError):
        return f"grant the role the schema {settings.schema!r}, or run  dayjob migrate  as its owner"
    if is_notification_queue_full(error):
        return NOTIFICATIONS_REMEDY
    if isinstance(error, asyncpg.DiskFullError | asyncpg.OutOfMemoryError):
        return "free disk space or memory on the server, then try again"
    return None
