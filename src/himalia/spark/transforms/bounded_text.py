"""What a request printed, bounded: whole up to 64 KiB, else its beginning, a marker and its end.

A *piece* is a text of which only the first and the last 32 KiB are kept, as bytes, with the size of the whole. Two
pieces put together are a piece again, so that a text can be taken in as it comes: by message, by batch, by day. Putting
together is associative, and where the cuts were does not show.

Expressions here are SQL, over the columns that they name.
"""

from __future__ import annotations

HALF_BYTES = 32 << 10
WHOLE_BYTES = 2 * HALF_BYTES
BEFORE, AFTER = "\\n… ", " bytes left out …\\n"

PIECE = "struct<head: binary, tail: binary, bytes: bigint>"
"""``tail`` is null where the whole is no longer than a half: it is the same as ``head`` then."""


def head(text: str) -> str:
    """The head of a text that is a piece of its own."""
    return f"substring(cast({text} as binary), 1, {HALF_BYTES})"


def tail(text: str) -> str:
    """The tail of a text that is a piece of its own."""
    return (
        f"if(octet_length({text}) > {HALF_BYTES}, {_last(f'cast({text} as binary)', str(HALF_BYTES))}, null)"
    )


def joined(heads: str, tails: str, size: str) -> str:
    """The piece that is all pieces of a text, of which ``heads`` and ``tails`` are put together in their order.

    Heads of pieces behind the first half of the text may be missing, and tails of pieces before its last half; and all
    tails, if it is no longer than a half.
    """
    last = f"if({size} > {HALF_BYTES}, {_last(tails, str(HALF_BYTES))}, null)"
    return f"named_struct('head', substring({heads}, 1, {HALF_BYTES}), 'tail', {last}, 'bytes', {size})"


def put_together(first: str, second: str) -> str:
    """Two pieces as one. Either may be null."""
    heads = f"concat(coalesce({first}.head, x''), coalesce({second}.head, x''))"
    tails = f"concat({_tail_of(first)}, {_tail_of(second)})"
    return joined(heads, tails, f"(coalesce({first}.bytes, 0) + coalesce({second}.bytes, 0))")


def shown(piece: str) -> str:
    """The text as people read it; cut between characters, never inside one."""
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
    """The last ``size`` bytes of binary data, or all of it if it has fewer."""
    return f"substring({data}, greatest(octet_length({data}) - {size}, 0) + 1, octet_length({data}))"


def _whole_characters(data: str, *, at_end: bool) -> str:
    """Binary as text, without the one to three bytes of a character that was cut at its end or its beginning."""
    size = f"octet_length({data})"
    tried = [
        f"cast(substring({data}, {1 if at_end else 1 + cut}, {size} - {cut}) as string)" for cut in range(4)
    ]
    return f"coalesce({', '.join(f'if(is_valid_utf8({text}), {text}, null)' for text in tried)}, {tried[0]})"
