"""The engine of a URL: refusals with their reasons, and lazy imports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dayjob.engines import registry
from dayjob.engines.registry import Entry, create_engine, parse
from dayjob.errors import ConfigError
from dayjob.runtime.clock import SYSTEM
from tests.support.bound import BOUND

KNOWN = ["az://", "file://", "gs://", "memory://", "s3://", "sqlite://"]


@pytest.fixture
def engine_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Registers ``fake://`` with a module of the given source."""
    monkeypatch.syspath_prepend(tmp_path)

    def register(source: str, extra: str | None = None) -> None:
        (tmp_path / "fake_engine.py").write_text(source)
        monkeypatch.delitem(sys.modules, "fake_engine", raising=False)
        monkeypatch.setitem(registry.ENGINES, "fake", Entry("fake_engine", extra))

    yield register
    sys.modules.pop("fake_engine", None)


@pytest.mark.parametrize(
    "url",
    ["", " ", "jobs.db", "/var/jobs.db", "mysql://localhost/jobs", "://", "sqlite3:///jobs.db",
     "sqlite", "sqlite:", "sqlite:jobs.db", "sqlite:/jobs.db", "memory", "memory:"],
)  # fmt: skip
def test_an_unknown_scheme_is_refused_with_the_known_ones(url: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        create_engine(url, SYSTEM)
    assert repr(url) in str(refusal.value)
    for known in KNOWN:
        assert known in str(refusal.value)


def test_a_url_that_can_not_be_parsed_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"sqlite://\[.*can't be read.*memory://"):
        create_engine("sqlite://[", SYSTEM)


@pytest.mark.parametrize("url", [None, 7, b"memory://", Path("jobs.db")])
def test_a_url_that_is_not_a_str_is_refused(url: Any) -> None:
    with pytest.raises(ConfigError, match=r"pass text such as 'sqlite:///jobs.db'"):
        create_engine(url, SYSTEM)


@pytest.mark.parametrize("url", ["sqlite:///jobs.db", "SQLite:///jobs.db", "SQLITE:///jobs.db"])
def test_a_scheme_is_case_insensitive(url: str) -> None:
    assert parse(url).parts.scheme == "sqlite"


@pytest.mark.parametrize(
    ("url", "scheme"),
    [
        ("postgres://host/db", "postgres"),
        ("postgresql+asyncpg://host/db", "postgresql"),
        ("postgresql+psycopg://host/db?schema=jobs", "postgresql"),
        ("Postgres+Asyncpg://host/db", "postgres"),
        ("sqlite+aiosqlite:///jobs.db", "sqlite"),
    ],
)
def test_the_driver_in_a_url_of_sqlalchemy_is_ignored(url: str, scheme: str) -> None:
    assert parse(url).parts.scheme == scheme
    assert type(create_engine(url, SYSTEM)) is type(
        create_engine(f"{scheme}://{url.partition('://')[2]}", SYSTEM)
    )


@pytest.mark.parametrize(
    "url", ["redis+x://host", "postgresql+://host", "mysql+aiomysql://host", "+asyncpg://h"]
)
def test_a_driver_of_another_engine_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="names no known engine"):
        parse(url)


def test_a_missing_driver_raises_with_the_extra_to_install(engine_module: Any) -> None:
    engine_module("import no_such_driver", extra="fancy")
    with pytest.raises(ConfigError) as refusal:
        create_engine("fake://host", SYSTEM)
    message = str(refusal.value)
    assert "fake://" in message
    assert "no_such_driver" in message
    assert "pip install 'dayjob[fancy]'" in message


def test_an_engine_without_an_extra_shows_the_import_error_itself(engine_module: Any) -> None:
    engine_module("import no_such_module")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        create_engine("fake://host", SYSTEM)


def test_an_error_in_the_engine_is_not_reported_as_a_missing_extra(engine_module: Any) -> None:
    engine_module("1 / 0", extra="fancy")
    with pytest.raises(ZeroDivisionError):
        create_engine("fake://host", SYSTEM)


TAKES_COLOUR = """
def create(url, clock):
    taken = url.take("colour", "red"), url.take("size", "small"), clock
    url.done("known are 'colour' and 'size'")
    return taken
"""


def test_options_are_read_by_name_and_have_defaults(engine_module: Any) -> None:
    engine_module(TAKES_COLOUR)
    assert create_engine("fake://?colour=deep%20blue", SYSTEM) == ("deep blue", "small", SYSTEM)  # type: ignore[comparison-overlap]
    assert create_engine("fake://?size=", SYSTEM) == ("red", "", SYSTEM)  # type: ignore[comparison-overlap]


def test_an_unknown_option_is_refused_by_name(engine_module: Any) -> None:
    engine_module(TAKES_COLOUR)
    with pytest.raises(ConfigError, match=r"unknown option 'color': known are 'colour' and 'size'"):
        create_engine("fake://?colour=blue&color=red", SYSTEM)


@pytest.mark.parametrize("url", ["memory://?bogus=1", "memory://shared?bogus=", "sqlite:///{path}?bogus=1"])
def test_every_engine_refuses_an_unknown_option_by_name(url: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'bogus'"):
        create_engine(url.format(path=tmp_path / "jobs.db"), SYSTEM)
    assert list(tmp_path.iterdir()) == []


def test_an_engine_is_imported_when_it_is_first_used() -> None:
    program = """
import sys
import dayjob
from dayjob.runtime.clock import SYSTEM
from dayjob.engines.registry import create_engine

def loaded():
    return {"sqlite3", "dayjob.engines.memory", "dayjob.engines.sqlite"} & set(sys.modules)

assert loaded() == set(), loaded()
create_engine("memory://", SYSTEM)
assert loaded() == {"dayjob.engines.memory"}, loaded()
create_engine("sqlite:///never-opened.db", SYSTEM)
assert "dayjob.engines.sqlite" in loaded(), loaded()
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=BOUND, check=False
    )
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://localhost:6379/0?prefix=a@b", "redis://localhost:6379/0?prefix=a@b"),
        ("postgresql://ada:secret@host/db", "postgresql://ada:***@host/db"),
        ("postgresql://ada:se:c@ret@host:5432/db?port=1", "postgresql://ada:***@host:5432/db?port=1"),
        ("redis://:secret@host", "redis://:***@host"),
        ("redis://:se/cr#et@host:1/0", "redis://:***@host:1/0"),
        (
            "postgresql://host/db?user=ada&password=secret&schema=x",
            "postgresql://host/db?user=ada&password=***&schema=x",
        ),
        ("postgresql://host/db?sslpassword=secret", "postgresql://host/db?sslpassword=***"),
        ("sqlite:///a:b@c.db", "sqlite:///a:b@c.db"),
        ("redis://secret@host/0", "redis://***@host/0"),
        ("postgresql://ada@host/db", "postgresql://ada@host/db"),
        ("postgresql://host/db?PASSWORD=secret", "postgresql://host/db?PASSWORD=***"),
        ("postgresql://host/db?passwo%72d=secret", "postgresql://host/db?passwo%72d=***"),
        ("postgresql://host/db?x=1;password=secret", "postgresql://host/db?x=***"),
        (
            "postgresql://host/db?passfile=/secret&sslmode=require",
            "postgresql://host/db?passfile=***&sslmode=require",
        ),
        ("s3://bucket/p?secret_access_key=secret", "s3://bucket/p?secret_access_key=***"),
        (
            "s3://bucket/p?region=eu&endpoint=http://u:secret@h",
            "s3://bucket/p?region=eu&endpoint=http://u:***@h",
        ),
        ("az://c/p?sas_token=a&sig=secret", "az://c/p?sas_token=***&sig=***"),
        ("az://c/p?secret", "az://c/p?***"),
        ("postgresql://host/db#secret", "postgresql://host/db#***"),
    ],
)
def test_a_password_is_not_shown(url: str, shown: str) -> None:
    assert registry.without_password(url) == shown


@pytest.mark.parametrize("scheme", sorted(registry.ENGINES))
@pytest.mark.parametrize(
    "rest", ["host/1?s3cret_key=S3CRET", "host/1?S3CRET", "u:S3CRET@host/x?y", "h/#S3CRET"]
)
def test_a_refused_url_does_not_print_its_secrets(scheme: str, rest: str) -> None:
    with pytest.raises(ConfigError) as refused:
        create_engine(f"{scheme}://{rest}", SYSTEM)
    assert "S3CRET" not in str(refused.value)


@pytest.mark.parametrize("path", ["jobs.db", "/var/lib/jobs.db"])
def test_a_path_is_refused_with_the_url_of_a_sqlite_file(path: str) -> None:
    with pytest.raises(ConfigError, match=f"for a SQLite file write 'sqlite:///{path}'"):
        parse(path)


@pytest.mark.parametrize(
    "url",
    [
        "postgres:///?schema=\ud800",
        "redis://h/0?prefix=a\udcff",
        "postgres://u:\ud800@h/d",
        "memory://?\udfff=1",
    ],
)
def test_a_url_with_a_character_that_has_no_bytes_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="character that UTF-8 lacks"):
        create_engine(url, SYSTEM)
