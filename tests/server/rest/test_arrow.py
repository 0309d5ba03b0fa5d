"""Records as Arrow: the same content as in every other form, whatever headers and payloads look like."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from himalia.log.api import Chunk
from himalia.log.columnar import to_columns
from himalia.protocol import encode
from himalia.record import Record
from himalia.server.rest.arrow import ArrowStream, _parse_headers_vectorized

Headers = dict[str, str]

texts = st.text(max_size=8)
headers = st.dictionaries(texts, texts, max_size=4)


def decoded(*records: Record) -> list[dict[str, Any]]:
    """The rows of a stream of these records."""
    stream = ArrowStream()
    columns = to_columns(Chunk(records, 0, 100, "e"), 0)
    body = stream.head() + bytes(stream.batch("orders", columns)) + stream.tail()
    rows: list[dict[str, Any]] = pa.ipc.open_stream(body).read_all().to_pylist()
    return rows


def record(offset: int, headers: bytes = b"{}", payload: bytes = b"null") -> Record:
    return Record("orders", offset, 1_794_794_400_000_000 + offset, f"id-{offset}", headers, payload)


@settings(deadline=None)
@given(st.lists(headers, min_size=1, max_size=8))
def test_headers_come_out_as_they_went_in(given: list[Headers]) -> None:
    """Quotes, escapes, emptiness and repetition make no difference."""
    rows = decoded(*(record(i, encode(each)) for i, each in enumerate(given)))
    assert [dict(row["headers"]) for row in rows] == given


@pytest.mark.parametrize(
    "written",
    [
        b'{"a":"b","c":"d"}',
        b'{ "a" : "b" }',
        b'{"a":"\\u00fc\\n"}',
        '{"ä":"ü"}'.encode(),
        b"{}",
        b'{"a":""}',
        b'{"":"{}"}',
        b'{"a":"}{","b":","}',
    ],
)
def test_headers_in_every_form_of_json(written: bytes) -> None:
    """Also beside others, and in forms that the server itself would not write."""
    beside = b'{"x":"y"}'
    rows = decoded(record(0, written), record(1, beside), record(2, b"{}"), record(3, written))
    expected = [json.loads(each) for each in (written, beside, b"{}", written)]
    assert [dict(row["headers"]) for row in rows] == expected


def test_every_column_of_a_record() -> None:
    first, second = decoded(record(7, b'{"a":"b"}', '{"n":"ü"}'.encode()), record(8))
    assert (first["topic"], first["offset"], first["id"]) == ("orders", 7, "id-7")
    assert first["ts"].isoformat() == "2026-11-16T02:00:00.000007+00:00"
    assert first["payload"] == '{"n":"ü"}'
    assert (second["offset"], second["id"], second["payload"]) == (8, "id-8", "null")


def test_bytes_that_are_no_text_are_told_as_such() -> None:
    """They do not break the stream for the records beside them."""
    rows = decoded(record(0, b'{"a":"\xff"}', b'"\xff"'), record(1, b'{"a":"b"}', b"1"))
    assert [row["payload"] for row in rows] == ['"�"', "1"]
    assert [dict(row["headers"]) for row in rows] == [{"a": "�"}, {"a": "b"}]


def test_headers_as_the_server_writes_them_need_no_decoder() -> None:
    """They are most of what there is to encode, and a decoder would keep the interpreter from everybody else."""
    written = [b'{"publisher":"token"}', encode({"a": "b", "c": ""}), b"{}", '{"ä":"}{,:"}'.encode()]
    maps = _parse_headers_vectorized(pa.array(written, pa.binary()))
    assert maps is not None
    assert [dict(each) for each in maps.to_pylist()] == [json.loads(each) for each in written]


@pytest.mark.parametrize("written", [b'{"a": "b"}', b'{"a":1,"b":2}', b'{"a":null}', b'{"a":"b"} '])
def test_headers_in_another_form_are_left_to_the_decoder(written: bytes) -> None:
    """Nothing is ever guessed."""
    assert _parse_headers_vectorized(pa.array([b'{"x":"y"}', written], pa.binary())) is None
