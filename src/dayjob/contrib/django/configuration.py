"""The setting ``DAYJOB``: its keys, their checks, and the URL of the site's own database.

``problems`` finds each mistake once. ``manage.py check`` reports all of them; ``configured_url`` raises the
first error. So a site with a mistake in ``DAYJOB`` starts, and fails when it uses a job.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlencode, urlsplit

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, connections
from msgspec import Struct

from dayjob import Broker, BrokerConfig, ConfigError

KEYS: Mapping[str, tuple[type, str]] = {
    "URL": (str, "a URL, such as 'redis://localhost'"),
    "DATABASE": (str, "an alias of DATABASES, such as 'default'"),
    "OPTIONS": (dict, "the options of the URL, such as {'schema': 'jobs'}"),
    "CONFIG": (BrokerConfig, "a dayjob.BrokerConfig"),
    "TRANSACTIONAL": (bool, "True or False"),
}
"""The keys of ``DAYJOB``, with the type and the description of their values."""

BACKEND = "dayjob.contrib.django.DayjobBackend"

TASK_HEADER = "django-task"
"""Marks the job of a task of ``django.tasks``, with its options as JSON."""

_REMEDY = 'Write DAYJOB = {"DATABASE": "default"} for the database of the site, or {"URL": "redis://..."}.'

_PASSED_ON = ("sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "service", "passfile")
"""The ``OPTIONS`` of a PostgreSQL database that its URL takes too."""


class Problem(Struct, frozen=True):
    """A mistake in the settings. ``id`` is that of the system check: E for errors, W for warnings."""

    id: str
    text: str
    hint: str


def configuration() -> Mapping[str, Any]:
    """Return ``DAYJOB``, or nothing if it is not a dictionary."""
    given = getattr(settings, "DAYJOB", None)
    return given if isinstance(given, Mapping) else {}


def problems() -> Iterator[Problem]:
    """Return the mistakes in ``DAYJOB``, the errors first."""
    given = getattr(settings, "DAYJOB", None)
    if given is None:
        yield Problem("E001", "The setting DAYJOB is missing.", _REMEDY)
        return
    if not isinstance(given, Mapping):
        yield Problem("E001", f"DAYJOB is a {type(given).__name__}, not a dictionary.", _REMEDY)
        return
    wrong = list(_wrong_values(given))
    yield from wrong
    if not wrong:
        yield from _store_problems(given)


def _wrong_values(given: Mapping[str, Any]) -> Iterator[Problem]:
    for key, value in given.items():
        if key not in KEYS:
            yield Problem("E002", f"DAYJOB has an unknown key {key!r}.", f"The keys are {', '.join(KEYS)}.")
        elif not isinstance(value, KEYS[key][0]):
            yield Problem(
                "E002", f"DAYJOB[{key!r}] is a {type(value).__name__}.", f"Write {KEYS[key][1]}."
            )  # fmt: skip
    if ("URL" in given) == ("DATABASE" in given):
        found = "both URL and DATABASE" if "URL" in given else "neither URL nor DATABASE"
        yield Problem("E003", f"DAYJOB has {found}.", _REMEDY)
    elif "URL" in given and "OPTIONS" in given:
        yield Problem("E003", "DAYJOB has OPTIONS beside URL.", "Write them into the URL: ?name=value.")


def _store_problems(given: Mapping[str, Any]) -> Iterator[Problem]:
    alias = given.get("DATABASE")
    if alias is not None and alias not in settings.DATABASES:
        known = ", ".join(settings.DATABASES)
        yield Problem("E005", f"DAYJOB['DATABASE'] is {alias!r}.", f"Write an alias of DATABASES: {known}.")
        return
    if alias is not None and connections[alias].vendor not in ("postgresql", "sqlite"):
        yield Problem(
            "E005",
            f"The database {alias!r} is {connections[alias].vendor}, which has no transactions with dayjob.",
            "Use SQLite or PostgreSQL, or set DAYJOB['URL'] to another store.",
        )
        return
    try:
        if alias is None or not _in_memory(alias):
            Broker(_url(given))
    except ConfigError as error:
        yield Problem("E004", f"The store can't be used: {error}.", "Correct DAYJOB.")
        return
    yield from _warnings(shared_alias(_url(given)))


def _warnings(alias: str | None) -> Iterator[Problem]:
    if alias is None:
        return
    database = connections[alias].settings_dict
    options = database.get("OPTIONS", {})
    if connections[alias].vendor == "sqlite":
        if str(options.get("transaction_mode")).upper() not in ("IMMEDIATE", "EXCLUSIVE"):
            yield Problem(
                "W001",
                f"The transactions of the SQLite database {alias!r} lock it at their first write. One that "
                "reads before it writes may fail with 'database is locked'.",
                f'Write "OPTIONS": {{"transaction_mode": "IMMEDIATE"}} in DATABASES[{alias!r}].',
            )
    elif not _joinable(alias):
        yield Problem(
            "W002",
            f"The database {alias!r} uses psycopg 2, so jobs are stored after the commit and not in it.",
            "Install psycopg 3: pip install 'psycopg[binary]'.",
        )
    elif options.get("pool") and not database.get("CONN_HEALTH_CHECKS"):
        yield Problem(
            "W003",
            f"The pool of the database {alias!r} hands out connections that the server has closed.",
            f'Write "CONN_HEALTH_CHECKS": True in DATABASES[{alias!r}].',
        )


_valid: set[int] = set()
"""Hashes of settings that had no error."""


def configured_url() -> str:
    """Return the URL of the site's store. Raise ``ConfigError`` if ``DAYJOB`` has an error."""
    given = configuration()
    key = hash(repr((given, settings.DATABASES)))
    if key not in _valid:
        for problem in problems():
            if problem.id.startswith("E"):
                raise ConfigError(f"{problem.text.rstrip('.')}: {problem.hint}")
        _valid.add(key)
    return _url(given)


def _url(given: Mapping[str, Any]) -> str:
    alias = given.get("DATABASE")
    if alias is not None:
        return database_url(alias, given.get("OPTIONS", {}))
    url: str = given["URL"]
    return "memory://django" if url == "memory://" else url  # One store for all event loops.


def backend_queues() -> list[str] | None:
    """Return the ``QUEUES`` of ``DayjobBackend`` in ``TASKS``, or None if it accepts every queue."""
    found: list[str] = []
    for params in getattr(settings, "TASKS", {}).values():
        if params.get("BACKEND") == BACKEND:
            queues = params.get("QUEUES", ["default"])
            if not queues:
                return None
            found += queues
    return found


def database_url(alias: str, options: Mapping[str, Any] | None = None) -> str:
    """Return the URL of a database of the site, by its current settings: in a test, the test database."""
    database = connections[alias].settings_dict
    if connections[alias].vendor == "sqlite":
        path = ":memory:" if _in_memory(alias) else str(Path(database["NAME"]).absolute())
        return _with_query(f"sqlite:///{quote(path)}", options or {})
    host, port = str(database.get("HOST") or ""), str(database.get("PORT") or "")
    user, password = str(database.get("USER") or ""), str(database.get("PASSWORD") or "")
    login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    given = database.get("OPTIONS", {})
    query = {name: given[name] for name in _PASSED_ON if name in given}
    if "/" in host:
        query["host"] = host
        query |= {"port": port} if port else {}
        where = ""
    else:
        where = host + (f":{port}" if port else "")
    name = quote(str(database.get("NAME") or ""), safe="")
    authority = f"{login}@{where}" if login else where
    return _with_query(f"postgresql://{authority}/{name}", {**query, **(options or {})})


def _with_query(url: str, options: Mapping[str, Any]) -> str:
    return f"{url}?{urlencode(options)}" if options else url


def _in_memory(alias: str) -> bool:
    name = str(connections[alias].settings_dict["NAME"])
    return connections[alias].vendor == "sqlite" and (name == ":memory:" or "mode=memory" in name)


def shared_alias(url: str) -> str | None:
    """Return the alias of the site's database in which the store at the URL is, if any."""
    store = _identity(url)
    if store is None:
        return None
    named: str = configuration().get("DATABASE", DEFAULT_DB_ALIAS)
    aliases: list[str] = sorted(settings.DATABASES, key=lambda alias: alias != named)
    for alias in aliases:
        if connections[alias].vendor in ("postgresql", "sqlite") and _identity(database_url(alias)) == store:
            return alias
    return None


def has_tables(alias: str) -> bool:
    """Return whether dayjob's tables belong into this database of the site."""
    try:
        return shared_alias(configured_url()) == alias and not _in_memory(alias)
    except ConfigError:  # A system check has reported it.
        return False


def joinable_alias(url: str) -> str | None:
    """Return that alias if a job can be stored in the transactions of its connection."""
    alias = shared_alias(url)
    return alias if alias is not None and _joinable(alias) else None


def _joinable(alias: str) -> bool:
    if connections[alias].vendor == "sqlite":
        return True
    from django.db.backends.postgresql.psycopg_any import is_psycopg3

    return bool(is_psycopg3)


def _identity(url: str) -> tuple[str, ...] | None:
    """Return the server and the name of a database, or the file. Users and options do not matter."""
    parts = urlsplit(url)
    scheme = parts.scheme.partition("+")[0]
    if scheme == "sqlite":
        return "sqlite", str(Path(unquote(parts.path[1:])).resolve())
    if scheme not in ("postgres", "postgresql"):
        return None
    query = dict(each.partition("=")[::2] for each in parts.query.split("&"))
    host = parts.hostname or unquote(query.get("host", ""))
    return "postgresql", host, str(parts.port or query.get("port") or 5432), unquote(parts.path[1:])
