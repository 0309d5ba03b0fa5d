"""The language of filters: what is evaluated is what was written, and only what is named is read."""

from __future__ import annotations

import json
from typing import Any

import cel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from himalia.errors import BadFilter, FilterFailed
from himalia.pubsub.filters import compile_filter
from himalia.pubsub.filters.parser import parse
from himalia.pubsub.filters.syntax_tree import render
from himalia.record import Record

HEADERS = {"source": "web", "a b": "c", "n": 5}
PAYLOAD = {
    "total": 120,
    "price": 9.5,
    "sku": "A-17",
    "tags": ["rush", "new"],
    "note": None,
    "big": 2**63,
    "nested": {"deep": {"er": [1, 2, {"x": True}]}, "": 1, 'q"uote': 2},
}


def record(payload: Any = PAYLOAD, headers: Any = HEADERS) -> Record:
    return Record("orders.eu", 12, 0, "an-id", json.dumps(headers).encode(), json.dumps(payload).encode())


def as_the_library_says(text: str, payload: Any = PAYLOAD) -> Any:
    """What the library makes of the text as it was written, with everything of the record at hand."""
    message = {"id": "an-id", "payload": payload, "headers": HEADERS}
    try:
        return cel.evaluate(
            text, {"topic": "orders.eu", "offset": 12, "headers": HEADERS, "message": message}
        )
    except Exception:
        return None


def as_we_say(text: str, payload: Any = PAYLOAD) -> Any:
    try:
        return compile_filter(text).matches(record(payload))
    except FilterFailed:
        return None


@pytest.mark.parametrize(
    "text",
    [
        "message.payload.total > 100 && message.payload.price < 10.0",
        "message.payload.nested.deep.er[2].x",
        'message["payload"]["nested"]["deep"]["er"][1] == 2',
        'message.payload.nested["q\\"uote"] == 2 && message.payload.nested[""] == 1',
        "has(message.payload.total) && !has(message.payload.voucher) && has(message.headers.source)",
        "has(message.payload.nested.deep) && has(message.id) && !has(message.other)",
        "has(message.payload.tags.x)",
        "has(message.payload.voucher.x) || true",
        "has(message.payload.total.x) || true",
        'headers["a b"] == "c" && message.headers.n == headers.n',
        "message.payload.tags.exists(topic, topic == 'new') && topic == 'orders.eu'",
        "message.payload.tags.exists(read_0, read_0 == message.payload.tags[1])",
        "message.payload.tags.all(t, size(t) <= 4) && message.payload.tags.exists_one(t, t[0] == 'r') || true",
        "message.payload.tags.map(t, t + '!') == ['rush!', 'new!']",
        "message.payload.tags.map(t, t == 'new', t).filter(t, true).existsOne(t, t == 'new')",
        "message.payload.nested.map(key, key).size() == 3",
        "message == message && size(message) == 3 && message.payload.big == 9223372036854775808u",
        "true ? false || true : false",
        "(true ? 1 : 2) == 1 ? 1 < 2 : false",
        "-(-5) == 5 && - 5 == -5 && !!true && 7 - 2 - 1 == 4 && 2 * 3 % 4 == 2 && 1 + 2 * 3 == 7",
        "(1 + 2) * 3 == 9 && -9223372036854775808 < 0 && 0x1F == 31 && 5u == 5u && 1e3 == 1000.0 && .5 == 0.5",
        "'a' < 'b' && b'\\xff' != b'a' && '\\x41\\101\\u00e9\\U0001F600' == 'AAé😀' && r'\\d' == '\\\\d'",
        '\'\'\'it\'s "quoted"\'\'\' == "it\'s \\"quoted\\"" && """a\nb""" == \'a\\nb\'',
        "{'a': 1, 'b': [1, 2,],}.b[0] == 1 && 1 in [1, 2] && 'a' in {'a': 1} && !('x' in message.payload)",
        "timestamp('2024-02-03T04:05:06Z').getMonth() == 1 && duration('90s').getMinutes() == 1",
        "string(message.payload.total) == '120' && int('5') == 5 && double('1.5') == 1.5 && type(1) == type(2)",
        "topic.startsWith('or') && topic.endsWith('eu') && topic.contains('.') && topic.matches('^[a-z.]+$')",
        "message.payload.note == null && message.payload.missing == 1",
        "message.payload.missing == 1 || message.payload.total == 120",
        "message.payload.total == 'text' // a comment",
        "message.payload",
    ],
)
def test_a_filter_means_what_the_library_makes_of_its_text(text: str) -> None:
    """What we evaluate, with parts of the record in place of paths, gives what the text as written gives."""
    expected = as_the_library_says(text)
    assert as_we_say(text) == (expected if isinstance(expected, bool) else None)


atoms = st.sampled_from(
    [
        "1",
        "-1",
        "2u",
        "0.5",
        "'new'",
        "'A-17'",
        "true",
        "false",
        "null",
        "topic",
        "offset",
        "headers.source",
        "headers.none",
        "message.payload.total",
        "message.payload.tags",
        "message.payload.tags[0]",
        "message.payload.nested",
        "message.payload.nested.deep.er",
        "message.payload.none",
        "message.payload['sku']",
        "message.id",
        "message",
        "[1,2]",
        "['rush']",
        "{'a':1}",
        "[]",
    ]
)


TEMPLATES = [
    *(
        f"{{0}} {sign} {{1}}"
        for sign in ("||", "&&", "<", "<=", ">", ">=", "==", "!=", "in", "+", "-", "*", "/", "%")
    ),
    *(f"({{0}}).{macro}(t, {{1}})" for macro in ("exists", "all", "exists_one", "map", "filter")),
    *(f"({{0}}).{macro}(t, t == {{1}})" for macro in ("exists", "all", "exists_one", "map", "filter")),
    *(
        f"({{0}}).{method}"
        for method in ("size()", "contains('e')", "startsWith('A')", "matches('[a-z]')", "total")
    ),
    *(f"{function}({{0}})" for function in ("", "!", "-", "size", "string")),
    "{0} ? {1} : {2}",
    "({0})[{1}]",
    "has(({0}).total)",
    "[{0}, {1}]",
]


def grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(st.sampled_from(TEMPLATES), inner, inner, inner).map(
        lambda made: made[0].format(*made[1:])
    )


def why_refused(text: str) -> str:
    try:
        compile_filter(text)
    except BadFilter as error:
        return str(error)
    return ""


def is_cel(text: str) -> bool:
    try:
        cel.compile(text)
    except ValueError:
        return False
    return True


@given(text=st.recursive(atoms, grown, max_leaves=8))
@settings(max_examples=200, deadline=None)
def test_random_filters_mean_what_the_library_makes_of_them(text: str) -> None:
    """The same as above, for expressions that we did not think of; and the text of a tree is that tree."""
    reason = why_refused(text)
    if reason:
        assert "steps" in reason or "macro" in reason or not is_cel(text), reason
        return
    assert render(parse(render(parse(text)))) == render(parse(text))
    expected = as_the_library_says(text)
    assert as_we_say(text) == (expected if isinstance(expected, bool) else None)


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b'  {"a": {"b": 1}}', True),
        (b'{"a": {"b": 2}, "a": {"b": 1}}', True),
        (b'{"\\u0061": {"\\u0062": 1}}', True),
        (b'{"a": {"b": 2}}', False),
        (b'{"a": 1}', None),
        (b'{"a": [1]}', None),
        (b'["a"]', None),
        (b"5", None),
        (b"null", None),
    ],
)
def test_a_part_is_found_in_any_form_of_json(payload: bytes, expected: bool | None) -> None:
    """Blanks, escapes and keys that come twice are read as JSON is; what is not there fails."""
    made = Record("orders", 0, 0, "an-id", b"{}", payload)
    if expected is None:
        with pytest.raises(FilterFailed):
            compile_filter("message.payload.a.b == 1").matches(made)
    else:
        assert compile_filter("message.payload.a.b == 1").matches(made) is expected


def test_what_is_missing_is_named() -> None:
    """A filter that asks for what a record lacks says what, and how to ask."""
    with pytest.raises(
        FilterFailed, match=r"there is no message\.payload\.voucher; test it with has\(\) first"
    ):
        compile_filter("message.payload.voucher == 1").matches(record())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "it ends where a value should follow"),
        ("message.payload >", "it ends where a value should follow"),
        ("1 ~ 2", "'~' at character 3"),
        ("[1, 2", "it ends where ',' should follow"),
        ("'abc", "the text that begins at character 1 has no end"),
        ("'\\q'", "unknown escape"),
        ("a b", "'b' at character 3 stands where the end should"),
        ("if == 1", "reserved word"),
        ("(" * 30 + "1" + ")" * 30, "nested more than 24 deep"),
        ("topic.foo()", "no method 'foo'"),
        ("topic.size(1)", "size at character 7 takes no arguments"),
        ("[1].map(1, 2)", "map at character 5 takes the name of a variable"),
    ],
)
def test_what_is_not_cel_is_refused_with_its_place(text: str, reason: str) -> None:
    """The error says what is wrong and where."""
    with pytest.raises(BadFilter) as refused:
        compile_filter(text)
    assert reason in str(refused.value)
