"""Any text as the URL of a store: refused with the reason, or accepted. No message has the password."""

from __future__ import annotations

from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st

from dayjob import ConfigError
from dayjob.engines.registry import ENGINES, create_engine, without_password
from tests.fuzz.inputs import TEXT, few

SCHEME = st.sampled_from([*ENGINES, "postgresql+asyncpg", "sqlite+x", "http", "", "POSTGRES"]) | TEXT
OPTION = st.sampled_from(
    ["timeout", "schema", "prefix", "synchronous", "flush_ms", "takeover", "readonly", "sslmode", "db", "x"]
)
PASSWORD = "hunter2-is-secret"


@st.composite
def urls(draw: st.DrawFn) -> str:
    quoted = draw(st.booleans())
    part = TEXT.map(lambda text: quote(text, errors="replace") if quoted else text)
    user = draw(st.sampled_from(["", f"user:{PASSWORD}@", f":{PASSWORD}@"]))
    host = draw(
        st.sampled_from(["", "localhost", "127.0.0.1:5432", "[::1]:1", "h:99999", "h:x", "a,b"]) | part
    )
    options = draw(st.lists(st.tuples(OPTION, part).map("=".join), max_size=3).map("&".join))
    return f"{draw(SCHEME)}://{user}{host}/{draw(part)}?{options}"


@given(urls() | TEXT)
@few(4)
def test_a_url_is_refused_or_accepted(url: str) -> None:
    shown = without_password(url)
    try:
        create_engine(url, None)
    except ConfigError as error:
        shown += str(error)
    assert PASSWORD not in shown
