"""Python values as the JSON of a payload: exactly what they are, or refused with what to do."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from himalia.errors import BadRequest

DEPTH_MAX = 1000


def encode_payload(payload: Any) -> bytes:
    """The JSON of a payload. ``msgspec.Raw`` is JSON already and is kept.

    Raises ``BadRequest`` for what JSON cannot say: NaN and infinities, which an encoder would turn into null, and
    sets, which it would turn into lists in no order. A scalar of numpy counts as the number that it holds.
    """
    if isinstance(payload, msgspec.Raw):
        return bytes(payload)
    try:
        _check(payload, 0)
        return _encode(payload)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise BadRequest(f"this payload cannot be written as JSON: {error}") from None


def _check(value: Any, depth: int) -> None:
    """``ValueError`` for what would be stored as something else. Structs and dataclasses are looked into too."""
    kind = type(value)
    if kind is str or kind is int or kind is bool or value is None:
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"JSON has no {float(value)!r}; send None or a string in its place")
        return
    if depth > DEPTH_MAX:
        raise ValueError(f"it is nested more than {DEPTH_MAX} deep")
    if isinstance(value, dict):
        for name, one in value.items():
            _check(name, depth + 1)
            _check(one, depth + 1)
    elif isinstance(value, list | tuple):
        for one in value:
            _check(one, depth + 1)
    elif isinstance(value, set | frozenset):
        raise ValueError("a set has no order and JSON has no sets; send a list: sorted(...)")
    elif isinstance(value, msgspec.Struct) or hasattr(kind, "__dataclass_fields__"):
        for name in getattr(kind, "__struct_fields__", None) or kind.__dataclass_fields__:
            _check(getattr(value, name, None), depth + 1)


def _encode_scalar(value: Any) -> Any:
    """What msgspec does not know: a scalar of numpy (or pandas, or torch) is the Python value that it holds."""
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "shape", None) == ():
        held = item()
        _check(held, 0)
        if type(held) is not type(value):
            return held
    kind = type(value)
    raise TypeError(
        f"a {kind.__module__}.{kind.__qualname__} is no JSON; convert it first, such as by .tolist() or str()"
    )


_encode = msgspec.json.Encoder(enc_hook=_encode_scalar).encode
