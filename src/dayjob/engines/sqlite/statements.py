"""The SQL of this engine: one statement per file in ``sql/``, named by its verb.

The files name the lists of columns in ``rows`` as ``:NAME``.
Statements on many jobs have a few fixed widths, so that each is prepared only once. Wide statements also
share the interpreter well: the driver releases the GIL at every statement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import TypeVar

from dayjob.engines import sql
from dayjob.engines.sqlite import rows

Item = TypeVar("Item")

_HERE = files("dayjob.engines.sqlite")

WIDEST = 500
_WIDTHS = (1, 10, 100, WIDEST)
_INSERT_WIDTHS = (50, 10, 1)
_CONSTANTS = {
    "CALL": ", ".join(f"{name} = ?" for name in rows.CALL_COLUMNS),
    "CLAIM_COLUMNS": ", ".join(rows.CLAIM_COLUMNS),
    "JOB_COLUMNS": ", ".join(f"job.{name}" for name in rows.JOB_COLUMNS),
    "RECORD_COLUMNS": ", ".join(rows.RECORD_COLUMNS),
}


@cache
def statement(name: str) -> str:
    return sql.with_constants((_HERE / "sql" / f"{name}.sql").read_text("utf-8"), _CONSTANTS)


@cache
def keyed(name: str, width: int) -> str:
    """Return the statement for that many keys."""
    return statement(name).format(keys=", ".join("?" * width))


def key_chunks(keys: Sequence[Item]) -> Iterator[tuple[int, tuple[Item | None, ...]]]:
    """Yield the keys in groups of the fixed widths. NULLs, which match nothing, fill up the last."""
    for start in range(0, len(keys), WIDEST):
        some = keys[start : start + WIDEST]
        width = next(width for width in _WIDTHS if width >= len(some))
        yield width, (*some, *[None] * (width - len(some)))


@cache
def directed(name: str, newest_first: bool) -> str:
    """Return the statement for ids beyond a cursor in the direction of travel."""
    return statement(name).format(beyond="<" if newest_first else ">", order="DESC" if newest_first else "")


@cache
def insert_of(width: int, columns: tuple[str, ...] = rows.INSERT_COLUMNS) -> str:
    """Return the statement that inserts that many rows."""
    row = f"({', '.join('?' * len(columns))})"
    return statement("insert").format(columns=", ".join(columns), rows=", ".join([row] * width))


def insert_chunks(rows: Sequence[Item]) -> Iterator[Sequence[Item]]:
    """Yield the rows in groups of the fixed widths, in order."""
    start = 0
    for width in _INSERT_WIDTHS:
        while len(rows) - start >= width:
            yield rows[start : start + width]
            start += width


def migrations() -> list[tuple[int, str]]:
    return sql.migrations(_HERE)
