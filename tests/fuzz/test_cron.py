"""Any text as a cron expression or a time zone: refused with the reason, or it has due times that advance."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dayjob import ConfigError
from dayjob.model.cron import Cron
from tests.fuzz.inputs import TEXT, few

FIELD = st.text(st.sampled_from("0123456789*/,-L#W?RHAJNMON "), min_size=1, max_size=8) | st.sampled_from(
    [
        "*",
        "*/5",
        "29",
        "30",
        "31",
        "2",
        "L",
        "LW",
        "5#5",
        "7L",
        "59-0",
        "0-59/61",
        "1-5,SUN",
        "99999999999",
        "00",
    ]
)
CRON = st.lists(FIELD, min_size=4, max_size=7).map(" ".join) | TEXT | st.sampled_from(["@daily", "@x"])
ZONE = (
    st.sampled_from(["UTC", "Europe/Berlin", "Pacific/Apia", "Etc/GMT+12", "localtime", "/etc/passwd"]) | TEXT
)
INSTANT = st.sampled_from([0, 1, 2**53, 253_402_300_799_000_000]) | st.integers(0, 4 * 10**15)


@given(CRON, ZONE, INSTANT)
@few(4)
def test_an_expression_is_refused_or_has_due_times(expression: str, zone: str, instant: int) -> None:
    try:
        timing = Cron(expression, zone)
    except ConfigError:
        return
    due = timing.after(instant)
    assert due is None or due > instant
    assert all(time <= instant for time in timing.latest(instant, 2))
