"""Accepted and refused names, and cleaning of error texts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dayjob.model.names import (
    ERROR_CHARS,
    HEADERS_BYTES,
    KEY_BYTES,
    QUEUE_BYTES,
    check_headers,
    check_kv_key,
    check_name,
    check_queue,
    check_text,
    clean_error,
)

HOSTILE = [
    "a", "a:b", "a:b:", ":", "%", "%00", "%s", "_", "*", "?", "'", '"', "`", "--", "'; DROP TABLE jobs; --",
    "\\", "\\0", "/", "../..", "{x}", "[x]", " ", "\t", "a\nb", "\r\n", "\x01", "\x7f", "\x1b[31m", "Ünï",
    "UPPER", "e\u0301", "\u00e9", "\u202e", "\ufeff", "\ufffd", "\uffff", "🦀", "👩‍👩‍👧", "\U0010ffff",
    "NULL", "None", "0",
]  # fmt: skip
NUL = ["\0", "a\0", "\0a", "a\0b"]
LONE_SURROGATE = ["\ud800", "a\udfffb", "\ude00\ud83d", "\ud83d\ude00"]


@pytest.mark.parametrize("name", HOSTILE, ids=ascii)
def test_a_hostile_name_is_accepted(name: str) -> None:
    check_queue(name)
    check_headers({name: name})
    assert check_text(name, "tenant") == len(name.encode())


@pytest.mark.parametrize("character", ["x", "é", "€", "🦀"])
@pytest.mark.parametrize("limit", [QUEUE_BYTES, KEY_BYTES])
def test_a_name_is_limited_in_bytes_not_in_characters(limit: int, character: str) -> None:
    whole, rest = divmod(limit, len(character.encode()))
    longest = character * whole + "x" * rest
    check_name(longest, "name", limit)
    with pytest.raises(ValueError, match=rf"name .* {limit + 1:,} bytes: at most {limit:,}"):
        check_name(longest + "x", "name", limit)


def test_the_limits_are_those_of_the_design() -> None:
    assert (QUEUE_BYTES, KEY_BYTES) == (200, 1024)
    check_queue("q" * 200)
    with pytest.raises(ValueError, match=r"queue name .* 201 bytes"):
        check_queue("q" * 201)


def test_an_empty_name_is_refused_and_an_empty_text_is_not() -> None:
    with pytest.raises(ValueError, match="queue name is empty"):
        check_queue("")
    assert check_text("", "value") == 0


@pytest.mark.parametrize("name", NUL, ids=ascii)
def test_a_nul_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"queue name .* NUL"):
        check_queue(name)


@pytest.mark.parametrize("name", LONE_SURROGATE, ids=ascii)
def test_a_lone_surrogate_is_refused_with_a_printable_message(name: str) -> None:
    with pytest.raises(ValueError, match=r"queue name .* lone surrogate") as refusal:
        check_queue(name)
    assert str(refusal.value).encode()


@pytest.mark.parametrize("name", [None, 7, b"email", ["email"]])
def test_a_name_that_is_not_a_str_is_refused(name: Any) -> None:
    with pytest.raises(TypeError, match=r"queue name .* pass a str"):
        check_queue(name)


@pytest.mark.parametrize("check", [check_queue, check_headers, check_kv_key])
@pytest.mark.parametrize(
    "value", ["x" * 100_000, b"x" * 100_000, "\0" * 100_000], ids=["str", "bytes", "NULs"]
)
def test_the_error_text_of_a_refusal_is_bounded(check: Any, value: object) -> None:
    with pytest.raises((TypeError, ValueError)) as refusal:
        check(value)
    assert len(str(refusal.value)) < 300


def test_headers_may_be_empty_and_their_values_too() -> None:
    check_headers({})
    check_headers({"name": ""})


@pytest.mark.parametrize(
    ("headers", "error", "words"),
    [
        ({"": "v"}, ValueError, "header name is empty"),
        ({"n" * 1025: "v"}, ValueError, "header name .* 1,025 bytes"),
        ({"a\0b": "v"}, ValueError, "header name .* NUL"),
        ({"\ud800": "v"}, ValueError, "header name .* lone surrogate"),
        ({7: "v"}, TypeError, "header name 7"),
        ({"trace": "a\0b"}, ValueError, "header 'trace' .* NUL"),
        ({"trace": "\ud800"}, ValueError, "header 'trace' .* lone surrogate"),
        ({"trace": 7}, TypeError, "header 'trace' is a int"),
        ({"trace": None}, TypeError, "header 'trace' is a NoneType"),
        ([("trace", "v")], TypeError, "headers is a .* pass a mapping"),
        ("trace", TypeError, "headers is a .* pass a mapping"),
    ],
)
def test_bad_headers_are_refused(headers: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        check_headers(headers)


def test_headers_are_limited_in_bytes_over_all_of_them() -> None:
    most = {"one": "é" * (HEADERS_BYTES // 4), "two": "x" * (HEADERS_BYTES // 2 - len("one" + "two"))}
    check_headers(most)
    with pytest.raises(ValueError, match=rf"headers have {HEADERS_BYTES + 1:,} bytes"):
        check_headers({**most, "two": most["two"] + "x"})


@pytest.mark.parametrize("key", [b"k", b"\0", b"\xff\xfe", b"k" * 1024])
def test_a_kv_key_is_any_bytes(key: bytes) -> None:
    check_kv_key(key)


@pytest.mark.parametrize(
    ("key", "error", "words"),
    [
        (b"", ValueError, "kv key has 0 bytes"),
        (b"k" * 1025, ValueError, "kv key has 1,025 bytes"),
        ("k", TypeError, "kv key is a str"),
        (None, TypeError, "kv key is a NoneType"),
    ],
)
def test_a_bad_kv_key_is_refused(key: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        check_kv_key(key)


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("", ""),
        ("boom", "boom"),
        ("línea\n🦀", "línea\n🦀"),
        ("a\0b", "a\N{REPLACEMENT CHARACTER}b"),
        ("a\ud800b", "a?b"),
    ],
    ids=ascii,
)
def test_only_unstorable_characters_are_removed_from_an_error_text(text: str, cleaned: str) -> None:
    assert clean_error(text) == cleaned


def test_a_very_long_error_text_keeps_its_beginning_and_its_end() -> None:
    text = f"first{'x' * 1_000_000}last"
    cleaned = clean_error(text)
    assert cleaned.startswith("firstxxx")
    assert cleaned.endswith("xxxlast")
    assert f"{len(text) - ERROR_CHARS:,} characters left out" in cleaned
    assert len(cleaned) < ERROR_CHARS + 100


def test_an_error_text_at_the_limit_is_kept_whole() -> None:
    text = "é" * ERROR_CHARS
    assert clean_error(text) == text
    assert "1 characters left out" in clean_error(text + "!")


@given(st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from("\0\ud800\udbff\udc00\udfff"))))
def test_a_cleaned_error_text_is_storable_text(text: str) -> None:
    cleaned = clean_error(text)
    check_text(cleaned, "error")
    assert len(cleaned) == len(text)
    assert clean_error(cleaned) == cleaned
