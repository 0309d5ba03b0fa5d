"""Frames in, messages out, and back."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jupyter_client.session import Session

from himalia.errors import ConfigurationError
from himalia.jupyter.wire import DELIMITER, Fault, FaultKind, KernelMessage, Peer, Wire, WireLimits

KEY = b"a0436f6c-1916-498b-8eb9-e81ab9368e84"

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(texts, values, max_size=4)
blobs = st.lists(st.binary(max_size=40), max_size=3)
identities = st.lists(st.binary(max_size=20).filter(lambda frame: frame != DELIMITER), max_size=3)


def good(frames: list[bytes], wire: Wire | None = None) -> KernelMessage:
    found = (wire or Wire(KEY)).decode(frames)
    assert isinstance(found, KernelMessage), found
    return found


def fault(frames: list[bytes], wire: Wire | None = None) -> Fault:
    wire = wire or Wire(KEY)
    before = wire.faults.total()
    found = wire.decode(frames)
    assert isinstance(found, Fault), found
    assert wire.faults.total() == before + 1
    assert wire.faults[found.kind] > 0
    return found


def signed(
    header: bytes = b'{"msg_id":"m","msg_type":"stream"}',
    parent: bytes = b"{}",
    metadata: bytes = b"{}",
    content: bytes = b"{}",
    *buffers: bytes,
) -> list[bytes]:
    """Frames with exactly these parts, signed by jupyter_client."""
    parts = [header, parent, metadata, content]
    return [b"topic", DELIMITER, Session(key=KEY).sign(parts), *parts, *buffers]


# There and back


@given(texts, objects, objects, blobs, identities)
def test_what_is_encoded_is_decoded(
    msg_type: str,
    content: dict[str, Any],
    metadata: dict[str, Any],
    buffers: list[bytes],
    idents: list[bytes],
) -> None:
    """Decoding the frames of a message gives the message."""
    wire = Wire(KEY, clock=lambda: 1_700_000_000_000_000)
    parent, _ = wire.encode("execute_request", {"code": "1+1"})
    sent, frames = wire.encode(
        msg_type, content, parent=parent, metadata=metadata, buffers=buffers, identities=idents
    )
    received = good(frames)
    assert received.decoded_content() == content
    assert received.parent_id == parent.msg_id
    assert received.parent_header == parent.header
    assert good(frames, wire) == sent


@given(objects, objects, blobs)
def test_what_jupyter_client_sends_is_understood(
    content: dict[str, Any], metadata: dict[str, Any], buffers: list[bytes]
) -> None:
    """A message of jupyter_client's Session arrives whole: ids, parts, buffers, identities."""
    session = Session(key=KEY, username="ada")
    parent = session.msg("execute_request")
    sent = session.msg("display_data", content, parent=parent, metadata=metadata)
    received = good([*session.serialize(sent, ident=[b"one", b"two"]), *buffers])
    assert (received.msg_id, received.msg_type) == (sent["msg_id"], "display_data")
    assert (received.session, received.username) == (session.session, "ada")
    assert received.parent_id == parent["msg_id"]
    assert received.decoded_content() == content
    assert json.loads(received.metadata) == metadata
    assert received.buffers == tuple(buffers)
    assert received.identities == (b"one", b"two")


@given(objects, objects, blobs)
def test_what_we_send_is_understood_by_jupyter_client(
    content: dict[str, Any], metadata: dict[str, Any], buffers: list[bytes]
) -> None:
    """jupyter_client's Session accepts our signature and reads our message whole."""
    wire = Wire(KEY, peer=Peer("mine", "grace"))
    parent, _ = wire.encode("kernel_info_request", {})
    sent, frames = wire.encode(
        "comm_msg", content, parent=parent, metadata=metadata, buffers=buffers, identities=[b"client"]
    )
    session = Session(key=KEY)
    idents, rest = session.feed_identities(frames)
    received = session.deserialize(rest)
    assert idents == [b"client"]
    assert received["header"]["msg_id"] == sent.msg_id
    assert received["header"]["session"] == "mine"
    assert received["header"]["username"] == "grace"
    assert received["header"]["date"].tzinfo is not None
    assert received["parent_header"]["msg_id"] == parent.msg_id
    assert received["content"] == content
    assert received["metadata"] == metadata
    assert [bytes(buffer) for buffer in received["buffers"]] == buffers


@pytest.mark.parametrize("scheme", ["hmac-sha256", "hmac-sha512", "hmac-md5"])
def test_every_signature_scheme_of_jupyter_client_is_understood(scheme: str) -> None:
    """The scheme is the connection file's choice."""
    session = Session(key=KEY, signature_scheme=scheme)
    frames = session.serialize(session.msg("status", {"execution_state": "busy"}))
    assert good(frames, Wire(KEY, scheme=scheme)).msg_type == "status"
    _, ours = Wire(KEY, scheme=scheme).encode("status", {})
    assert session.deserialize(session.feed_identities(ours)[1])["msg_type"] == "status"


@pytest.mark.parametrize("scheme", ["sha256", "hmac-", "hmac-nonsense", ""])
def test_an_unknown_scheme_is_refused_at_once(scheme: str) -> None:
    """A connection that could not be checked is never begun."""
    with pytest.raises(ConfigurationError):
        Wire(KEY, scheme=scheme)


def test_without_a_key_nothing_is_signed_or_checked() -> None:
    """An empty key is Jupyter's way to turn signatures off, in both directions."""
    session = Session(key=b"")
    wire = Wire(b"")
    assert good(session.serialize(session.msg("status")), wire).msg_type == "status"
    assert good([b"t", DELIMITER, b"anything", *signed()[3:]], wire).msg_type == "stream"
    _, frames = wire.encode("status", {})
    assert frames[1] == b""
    assert session.deserialize(session.feed_identities(frames)[1])["msg_type"] == "status"


def test_a_message_of_another_peer_can_be_signed_again() -> None:
    """Frames for a kernel with another key carry that key's signature and the same message."""
    sent, _ = Wire(b"other").encode("execute_request", {"code": "1"}, buffers=[b"b"])
    assert good(Wire(KEY).frames_of(sent)).header == sent.header


# Faults


@given(st.integers(2, 6), st.integers(0, 10_000), st.integers(0, 7))
def test_a_single_wrong_bit_is_noticed(frame: int, position: int, bit: int) -> None:
    """Whichever bit of the signature or of a signed part was changed, the message is refused."""
    frames = signed(
        content=b'{"name":"stdout","text":"hello"}', metadata=b'{"a":1}', parent=b'{"msg_id":"p"}'
    )
    changed = bytearray(frames[frame])
    changed[position % len(changed)] ^= 1 << bit
    frames[frame] = bytes(changed)
    found = fault(frames)
    assert found.kind is FaultKind.BAD_SIGNATURE
    assert (found.msg_type, found.parent_id) == ("", "")


def test_a_message_signed_with_another_key_is_forged() -> None:
    """Nobody without the key can put output into a kernel's mouth."""
    _, frames = Wire(b"guessed").encode("stream", {"text": "forged"})
    assert fault(frames).kind is FaultKind.BAD_SIGNATURE


def test_an_unsigned_message_is_told_apart() -> None:
    """No signature at all is its own fault."""
    frames = signed()
    frames[2] = b""
    assert fault(frames).kind is FaultKind.UNSIGNED


@pytest.mark.parametrize("length", range(7))
def test_a_message_with_missing_frames_is_short(length: int) -> None:
    """Whatever is missing at the end, and whether the delimiter is there or not."""
    assert fault(signed()[:length]).kind is FaultKind.SHORT


def test_a_message_without_delimiter_is_short() -> None:
    """Frames that are no Jupyter message are reported, not guessed at."""
    assert fault([b"x"] * 10).kind is FaultKind.SHORT


@pytest.mark.parametrize("part", ["header", "parent", "metadata", "content"])
@pytest.mark.parametrize(
    "broken",
    [b"", b"{", b"nonsense", b'{"a":1} {"b":2}', b'{"a":1},"b":{"c":2}', b"[" * 100_000 + b"]" * 100_000],
)
def test_a_part_that_is_not_json_is_refused(part: str, broken: bytes) -> None:
    """Each of the four parts is one JSON value, and nothing can be smuggled in behind it."""
    assert fault(signed(**{part: broken})).kind is FaultKind.NOT_JSON  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "header", [b"{}", b"[]", b"null", b'{"msg_id":"m"}', b'{"msg_type":"t"}', b'{"msg_id":1,"msg_type":"t"}']
)
def test_a_header_without_ids_is_refused(header: bytes) -> None:
    """A message that cannot be told from others, or whose type is unknown, is none."""
    assert fault(signed(header)).kind is FaultKind.NOT_JSON


def test_a_message_with_unreadable_content_tells_whose_it_was() -> None:
    """The loss can be recorded with the request it belongs to."""
    found = fault(signed(parent=b'{"msg_id":"p"}', content=b"nonsense"))
    assert (found.msg_type, found.parent_id) == ("stream", "p")


def test_a_message_that_is_too_large_tells_its_size_type_and_parent() -> None:
    """So that a marker can be stored in its place."""
    frames = signed(b'{"msg_id":"m","msg_type":"display_data"}', b'{"msg_id":"p"}', b"{}", b"{}", b"x" * 1000)
    found = fault(frames, Wire(KEY, limits=WireLimits(1000)))
    assert found.kind is FaultKind.TOO_LARGE
    assert (found.msg_type, found.parent_id) == ("display_data", "p")
    assert found.size_bytes == sum(map(len, frames))
    assert good(frames).buffers == (b"x" * 1000,)


def test_a_forged_message_that_is_too_large_tells_nothing() -> None:
    """Nothing is believed before the signature is checked."""
    frames = signed(content=b'"' + b"x" * 2000 + b'"')
    frames[2] = b"0" * 64
    found = fault(frames, Wire(KEY, limits=WireLimits(1000)))
    assert (found.kind, found.msg_type) == (FaultKind.BAD_SIGNATURE, "")


def test_a_message_too_large_to_tell_its_parent_is_still_reported() -> None:
    """An unreadable header does not hide the size."""
    found = fault(signed(b"?", content=b'"' + b"x" * 2000 + b'"'), Wire(KEY, limits=WireLimits(1000)))
    assert (found.kind, found.msg_type) == (FaultKind.TOO_LARGE, "")


@given(st.lists(st.binary(max_size=30) | st.just(DELIMITER) | st.just(b"{}"), max_size=10), st.booleans())
def test_no_frames_make_it_raise(frames: list[bytes], has_key: bool) -> None:
    """Whatever arrives, the loop that receives goes on."""
    assert isinstance(Wire(KEY if has_key else b"").decode(frames), KernelMessage | Fault)


# Fit to be stored as it is

almost_json = (
    st.builds(
        lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"),
        st.text() | values,
    )
    | st.binary(max_size=10)
    | st.sampled_from(
        [
            b"NaN",
            b"[1,\r\n-Infinity]",
            b'"\xff\xfe"',
            b'{"a":\n1}',
            b'"\\ud800"',
            b'"\\ud83d\\ude00"',
            b'"a\nb"',
        ]
    )
)


@given(almost_json, almost_json)
def test_whatever_is_accepted_can_be_put_into_other_json(metadata: bytes, content: bytes) -> None:
    """The parts joined into one object are strict JSON, in UTF-8, on one line."""
    found = Wire(b"").decode([DELIMITER, b"", b'{"msg_id":"m","msg_type":"t"}', b"{}", metadata, content])
    if isinstance(found, KernelMessage):
        whole = b'{"metadata":%b,"content":%b}' % (found.metadata, found.content)

        def refuse(constant: str) -> None:
            raise AssertionError(constant)

        json.loads(whole.decode(), parse_constant=refuse)
        assert b"\n" not in whole
        assert b"\r" not in whole


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b'{"text":"caf\xe9.txt"}', {"text": "caf\ufffd.txt"}),
        (b'{"text":"\\ud800!"}', {"text": "\ufffd!"}),
        (b'{"text":"\xed\xa0\x80"}', {"text": "\ufffd\ufffd\ufffd"}),
        (b'{"x":NaN,"y":[Infinity,-Infinity]}', {"x": None, "y": [None, None]}),
        (b'{\n  "x": 1\r\n}', {"x": 1}),
        (b'{"text":"a\nb"}', {"text": "a\nb"}),
        ('{"text":"é😀"}'.encode(), {"text": "é😀"}),
    ],
)
def test_output_that_is_almost_json_is_kept(content: bytes, expected: dict[str, Any]) -> None:
    """What Jupyter's own clients would show is not lost for being no strict JSON."""
    assert good(signed(content=content)).decoded_content() == expected


def test_what_jupyter_client_makes_of_odd_text_is_kept() -> None:
    """A kernel that prints a file name which is not UTF-8 sends bytes that are not UTF-8."""
    session = Session(key=KEY)
    sent = session.msg("stream", {"name": "stdout", "text": "caf\udce9.txt"})
    assert good(session.serialize(sent)).decoded_content()["text"] == "caf\ufffd.txt"


def test_what_is_not_json_in_a_request_of_ours_is_made_so() -> None:
    """A half surrogate pair and NaN can be sent."""
    sent, frames = Wire(KEY).encode("execute_request", {"code": "'\ud800'", "x": float("nan")})
    assert good(frames).decoded_content() == {"code": "'\ufffd'", "x": None}
    assert good(frames).content == sent.content


@pytest.mark.parametrize("parent", [b"null", b"{}", b'{"msg_id":null}', b'{"msg_id":""}', b'{"other":1}'])
def test_an_absent_parent_is_an_empty_id(parent: bytes) -> None:
    """However a kernel says that a message has no parent; and it is an object, never null."""
    found = good(signed(parent=parent))
    assert found.parent_id == ""
    assert found.parent_header.startswith(b"{")


@pytest.mark.parametrize("content", [b"[]", b"null", b"1", b'"text"'])
def test_content_that_is_no_object_reads_as_empty(content: bytes) -> None:
    """Readers can rely on a dictionary."""
    assert good(signed(content=content)).decoded_content() == {}


def test_odd_session_and_username_do_not_cost_the_message() -> None:
    """Only the id and the type are needed."""
    found = good(signed(b'{"msg_id":"m","msg_type":"t","session":null,"username":3}'))
    assert (found.session, found.username) == ("", "")


# Cost


def test_messages_of_one_cell_share_their_parent() -> None:
    """A flood of output keeps one copy of its parent header, and is no work for the garbage collector."""
    wire = Wire(KEY)
    parent = b'{"msg_id":"p"}'
    one, two = (good(signed(parent=bytes(bytearray(parent))), wire) for _ in range(2))
    assert one.parent_header is two.parent_header
    assert one.msg_type is two.msg_type
    assert not gc.is_tracked(one)


def test_size_counts_parts_and_buffers() -> None:
    """What limits count is what is kept in memory."""
    frames = signed(b'{"msg_id":"m","msg_type":"t"}', b"{}", b"{}", b"{}", b"12345", b"678")
    assert good(frames).size_bytes == sum(map(len, frames[3:]))


def test_decoding_is_at_least_three_times_as_fast_as_jupyter_client() -> None:
    """The whole way from frames to a message with its ids known and its signature checked."""
    session = Session(key=KEY, digest_history_size=0)
    parent = session.msg("execute_request")
    flood = [
        session.serialize(
            session.msg("stream", {"name": "stdout", "text": f"{i}\n"}, parent=parent), ident=[b"t"]
        )
        for i in range(500)
    ]
    wire = Wire(KEY)

    def theirs(frames: list[bytes]) -> object:
        return session.deserialize(session.feed_identities(frames)[1])

    def best_s(decode: Callable[[list[bytes]], object]) -> float:
        def once_s() -> float:
            started = time.perf_counter()
            for frames in flood:
                decode(frames)
            return time.perf_counter() - started

        return min(once_s() for _ in range(7))

    assert best_s(theirs) > 3 * best_s(wire.decode)
