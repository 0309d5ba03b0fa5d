"""The output of a request, bounded: whole up to 64 KiB, else its beginning, a marker and its end.

A *piece* holds the first and the last 32 KiB of a text, as bytes, and the size of the whole. Two pieces concatenate to
a piece, so that output can be added by message, by batch and by day. Concatenation is associative, and the result does
not depend on where the text was split.

All functions return SQL expressions over the columns that they are given.
"""

from __future__ import annotations

HALF_BYTES = 32 << 10
WHOLE_BYTES = 2 * HALF_BYTES
BEFORE, AFTER = "\\n… ", " bytes left out …\\n"

PIECE = "struct<head: binary, tail: binary, bytes: bigint>"
"""``tail`` is null if the whole is at most a half long; it equals ``head`` then."""


def head(text: str) -> str:
    """Return the head of the piece of one text."""
    return f"substring(cast({text} as binary), 1, {HALF_BYTES})"


def tail(text: str) -> str:
    """Return the tail of the piece of one text."""
    return (
        f"if(octet_length({text}) > {HALF_BYTES}, {_last(f'cast({text} as binary)', str(HALF_BYTES))}, null)"
    )


def concat_all(heads: str, tails: str, size: str) -> str:
    """Return the piece of a text from the heads and tails of its parts, each concatenated in order.

    Heads of parts beyond the first half may be left out, and tails of parts before the last half; and all tails if the
    text is at most a half long.
    """
    last = f"if({size} > {HALF_BYTES}, {_last(tails, str(HALF_BYTES))}, null)"
    return f"named_struct('head', substring({heads}, 1, {HALF_BYTES}), 'tail', {last}, 'bytes', {size})"


def concat(first: str, second: str) -> str:
    """Concatenate two pieces, either of which may be null."""
    heads = f"concat(coalesce({first}.head, x''), coalesce({second}.head, x''))"
    tails = f"concat({_tail_of(first)}, {_tail_of(second)})"
    return concat_all(heads, tails, f"(coalesce({first}.bytes, 0) + coalesce({second}.bytes, 0))")


def render(piece: str) -> str:
    """Return the text for users. It is cut between characters, never inside one."""
    head, tail, size = f"{piece}.head", f"{piece}.tail", f"{piece}.bytes"
    rest = _last(tail, f"cast({size} - {HALF_BYTES} as int)")
    first, last = _whole_characters(head, at_end=True), _whole_characters(tail, at_end=False)
    left_out = f"{size} - octet_length({first}) - octet_length({last})"
    return f"""case
        when {size} > {WHOLE_BYTES} then concat({first}, '{BEFORE}', {left_out}, '{AFTER}', {last})
        when {size} > {HALF_BYTES} then cast(concat({head}, {rest}) as string)
        else coalesce(cast({head} as string), '')
    end"""


def _tail_of(piece: str) -> str:
    return f"coalesce({piece}.tail, {piece}.head, x'')"


def _last(data: str, size: str) -> str:
    """Return the last ``size`` bytes of binary data, or all of them."""
    return f"substring({data}, greatest(octet_length({data}) - {size}, 0) + 1, octet_length({data}))"


def _whole_characters(data: str, *, at_end: bool) -> str:
    """Decode binary data without the one to three bytes of a character that was cut at its end or beginning."""
    size = f"octet_length({data})"
    candidates = [
        f"cast(substring({data}, {1 if at_end else 1 + cut}, {size} - {cut}) as string)" for cut in range(4)
    ]
    return f"coalesce({', '.join(f'if(is_valid_utf8({text}), {text}, null)' for text in candidates)}, {candidates[0]})"
