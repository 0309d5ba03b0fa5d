"""Lines of NDJSON, split out of a stream of bytes."""

from collections.abc import AsyncIterator

from hypothesis import given
from hypothesis import strategies as st

from himalia.ndjson import LineSplitter, split_lines


@given(st.lists(st.binary(max_size=6).map(lambda data: data.replace(b"\xff", b"\n"))))
def test_any_parts(parts: list[bytes]) -> None:
    """However a stream is cut into parts, its lines are those of the whole."""
    splitter = LineSplitter()
    lines: list[bytes] = []
    for part in parts:
        lines += splitter.feed(part)
    whole = b"".join(parts).split(b"\n")
    rest = whole.pop()
    assert lines == whole
    assert splitter.pending_bytes == len(rest)
    assert splitter.finish() == ([rest] if rest else [])


def test_other_line_ends() -> None:
    """Only a newline ends a line: JSON may contain U+2028 and U+0085, and a carriage return stays."""
    lines = ["\u2028".encode(), "\x85".encode(), b"\r"]
    assert LineSplitter().feed(b"\n".join([*lines, b""])) == lines


def test_finish_resets() -> None:
    """A splitter that was finished begins again, without what was pending."""
    splitter = LineSplitter()
    splitter.feed(b"a")
    assert splitter.finish() == [b"a"]
    assert splitter.feed(b"b\n") == [b"b"]


async def test_stream() -> None:
    """A stream yields its lines, empty ones too, and the last one if it has no end."""

    async def chunks() -> AsyncIterator[bytes]:
        for chunk in (b"on", b"e\n\ntw", b"o"):
            yield chunk

    assert [line async for line in split_lines(chunks())] == [b"one", b"", b"two"]
