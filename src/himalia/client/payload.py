"""Encoding of Python values as JSON payloads: without loss, or refused with a message that says what to do."""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal
from enum import Enum
from typing import Any

import msgspec

from himalia.errors import BadRequest

DEPTH_MAX = 1000


def encode_payload(payload: Any) -> bytes:
    """Encode a payload. ``msgspec.Raw`` holds JSON already and is not changed.

    Raises ``BadRequest`` for what JSON cannot represent: NaN and infinities, which the encoder would turn into null, or
    into strings if they are Decimals, and sets, which it would turn into lists in arbitrary order. A numpy scalar is
    encoded as its number.
    """
    if isinstance(payload, msgspec.Raw):
        return bytes(payload)
    try:
        _check_value(payload, 0)
        return _encode(payload)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise BadRequest(f"cannot encode the payload as JSON: {error}") from None


def _check_value(value: Any, depth: int) -> None:
    """Raise ``ValueError`` for a value that the encoder would change. Checks fields of structs and dataclasses too."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"JSON has no {float(value)!r}; send None or a string instead")
        return
    if isinstance(value, Decimal) and not value.is_finite():
        raise ValueError(f"JSON has no {value}; send None or a string instead")
    if depth > DEPTH_MAX:
        raise ValueError(f"it is nested more than {DEPTH_MAX} deep")
    if isinstance(value, dict):
        _check_names(value)
        for name, one in value.items():
            _check_value(name, depth + 1)
            _check_value(one, depth + 1)
    elif isinstance(value, Enum):
        _check_value(value.value, depth + 1)
    elif isinstance(value, list | tuple):
        for one in value:
            _check_value(one, depth + 1)
    elif isinstance(value, set | frozenset):
        raise ValueError("a set has no order and JSON has no sets; send a list: sorted(...)")
    else:
        for name in _field_names(kind):
            _check_value(getattr(value, name, None), depth + 1)


def _check_names(value: dict[Any, Any]) -> None:
    """Check the keys of a dict. Numbers are encoded as strings, so they may collide with keys that are strings."""
    others = [name for name in value if type(name) is not str]
    for name in others:
        held = name.value if isinstance(name, Enum) else name
        if held is None or isinstance(held, bool | tuple):
            raise ValueError(f"the keys of a dict are strings or numbers, and {held!r} is neither")
    if others and len({str(name) for name in value}) < len(value):
        raise ValueError("two keys of a dict are the same name in JSON, such as 1 and '1'")


def _field_names(kind: type) -> Iterable[str]:
    """Return the field names of a msgspec struct, a dataclass or an attrs class; none of another class."""
    if issubclass(kind, msgspec.Struct):
        return kind.__struct_fields__
    if attributes := getattr(kind, "__attrs_attrs__", None):
        return [attribute.name for attribute in attributes]
    return getattr(kind, "__dataclass_fields__", ())


def _encode_scalar(value: Any) -> Any:
    """Convert a value that msgspec does not know: a scalar of numpy, pandas or torch to its Python value."""
    item = getattr(value, "item", None)
    # The number in a numpy time depends on its unit, and NaT would become null.
    is_time = getattr(getattr(value, "dtype", None), "kind", "") in ("M", "m")
    if callable(item) and getattr(value, "shape", None) == () and not is_time:
        held = item()
        _check_value(held, 0)
        if type(held) is not type(value):
            return held
    kind = type(value)
    raise TypeError(
        f"a {kind.__module__}.{kind.__qualname__} is not JSON; convert it first, for example with .tolist() or str()"
    )


_encode = msgspec.json.Encoder(enc_hook=_encode_scalar).encode
