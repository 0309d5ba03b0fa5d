"""Payloads of the client library: stored as what they are, or refused with what to do."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import json
import math
import uuid
from enum import Enum
from typing import Any

import attrs
import msgspec
import pytest

from himalia.client.payload import encode_payload
from himalia.errors import BadRequest


@dataclasses.dataclass
class Order:
    price: float


@attrs.define
class Item:
    price: float
    tags: set[str] | None = None


class Rate(Enum):
    UNKNOWN = math.nan
    ANY = frozenset("ab")


class Nothing(Enum):
    AT_ALL = None


@pytest.mark.parametrize(
    "payload",
    [
        math.nan,
        math.inf,
        [1.0, -math.inf],
        {"a": {"b": (1, math.nan)}},
        Order(math.nan),
        {math.nan: 1},
        Item(math.nan),
        [Rate.UNKNOWN],
        decimal.Decimal("NaN"),
        {"price": decimal.Decimal("-Infinity")},
        {decimal.Decimal("NaN"): 1},
        [decimal.Decimal("sNaN")],
    ],
    ids=[
        "nan",
        "inf",
        "in a list",
        "in a dict",
        "in a dataclass",
        "as a key",
        "in attrs",
        "in an enum",
        "decimal",
        "infinite decimal",
        "decimal as a key",
        "signaling decimal",
    ],
)
def test_a_number_that_json_does_not_have_is_refused(payload: Any) -> None:
    """NaN and infinities are not stored as null or as text, however deep they lie."""
    with pytest.raises(BadRequest, match="JSON has no"):
        encode_payload(payload)


@pytest.mark.parametrize(
    "payload",
    [{1, 2}, {"tags": frozenset("a")}, [[set()]], Item(1.0, {"a"}), Rate.ANY],
    ids=["set", "in a dict", "in a list", "in attrs", "in an enum"],
)
def test_a_set_is_refused(payload: Any) -> None:
    """A set would become a list in an order that changes from run to run."""
    with pytest.raises(BadRequest, match="send a list"):
        encode_payload(payload)


def test_scalars_of_numpy_are_the_numbers_they_hold() -> None:
    """Integers, floats and booleans of numpy count as Python's; NaN among them is refused."""
    numpy = pytest.importorskip("numpy")
    payload = {
        "n": numpy.int64(2**53 + 1),
        "x": numpy.float32(0.5),
        "y": numpy.float64(1.5),
        "b": numpy.bool_(1),
    }
    assert json.loads(encode_payload(payload)) == {"n": 2**53 + 1, "x": 0.5, "y": 1.5, "b": True}
    for nan in (numpy.float32("nan"), numpy.float64("nan")):
        with pytest.raises(BadRequest, match="JSON has no"):
            encode_payload([nan])
    with pytest.raises(BadRequest, match="tolist"):
        encode_payload(numpy.zeros(3))
    for time in (numpy.datetime64("2026-01-01", "ns"), numpy.datetime64("NaT"), numpy.timedelta64(1, "s")):
        with pytest.raises(BadRequest, match="str\\(\\)"):
            encode_payload({"at": time})


def test_names_that_become_the_same_are_refused() -> None:
    """A number as a name becomes a text, which may be there already."""
    assert encode_payload({1: "a", "2": "b"}) == b'{"1":"a","2":"b"}'
    with pytest.raises(BadRequest, match="the same name"):
        encode_payload({1: "a", "1": "b"})


@pytest.mark.parametrize("name", [True, None, (1, 2), Nothing.AT_ALL], ids=repr)
def test_a_name_that_is_neither_string_nor_number_is_refused(name: Any) -> None:
    """It is the key that is wrong, and the sentence says so: as values these are JSON."""
    with pytest.raises(BadRequest, match="keys of a dict are strings or numbers"):
        encode_payload([{name: 1}])


@pytest.mark.parametrize(
    ("payload", "stored"),
    [
        ({"a": [1, 2.5, None, True, "ü"]}, '{"a":[1,2.5,null,true,"ü"]}'),
        ((1, 2), "[1,2]"),
        (datetime.datetime(2026, 11, 18, tzinfo=datetime.UTC), '"2026-11-18T00:00:00Z"'),
        (decimal.Decimal("1.10"), '"1.10"'),
        (uuid.UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        ({datetime.date(2026, 11, 18): 1, 1.5: 2}, '{"2026-11-18":1,"1.5":2}'),
        (b"\x00\xff", '"AP8="'),
        (Order(1.5), '{"price":1.5}'),
        (msgspec.Raw(b'{"n": 1.0}'), '{"n": 1.0}'),
    ],
    ids=["plain", "tuple", "datetime", "decimal", "uuid", "keys", "bytes", "dataclass", "raw"],
)
def test_what_json_can_say_is_stored(payload: Any, stored: str) -> None:
    """Documented forms stay: times as ISO 8601, decimals as strings, bytes as base64, Raw as it is."""
    assert encode_payload(payload).decode() == stored


@pytest.mark.parametrize(
    "payload", [object(), lambda: 1, complex(1, 2)], ids=["object", "function", "complex"]
)
def test_what_it_cannot_is_refused(payload: Any) -> None:
    """The error names the type."""
    with pytest.raises(BadRequest, match=type(payload).__qualname__):
        encode_payload(payload)


def test_a_payload_without_end_is_refused() -> None:
    """A list that contains itself is an error, not a crash."""
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(BadRequest):
        encode_payload(endless)
