"""Kernel messages and events as records, and back."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from himalia.jupyter.channels import Channel
from himalia.jupyter.records import (
    ID_LENGTH_MAX,
    KernelEvent,
    RecordHeaders,
    event_draft,
    read_headers,
    record_id,
    seq_of,
    stored_id,
    to_draft,
    to_message,
)
from himalia.jupyter.wire import KernelMessage, Wire
from himalia.record import Draft, Record
from tests.jupyter.request_records import KERNEL, REQUEST, event, iopub, message, record, stream

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=5).map(msgspec.json.encode)


@st.composite
def messages(draw: st.DrawFn) -> KernelMessage:
    msg_id, parent_id = draw(st.text()), draw(st.text())
    return KernelMessage(
        msg_id=msg_id,
        msg_type=draw(st.sampled_from(["stream", "status", "comm_msg", "what is this"])),
        session=draw(st.text()),
        username=draw(st.text()),
        parent_id=parent_id,
        header=msgspec.json.encode({"msg_id": msg_id, "date": draw(st.text())}),
        parent_header=msgspec.json.encode({"msg_id": parent_id} if parent_id else {}),
        metadata=draw(OBJECTS),
        content=draw(OBJECTS),
        buffers=tuple(draw(st.lists(st.binary(max_size=50), max_size=3))),
        received_us=1_000_000,
    )


class TestMessages:
    @given(messages())
    def test_a_message_comes_back_to_the_byte(self, sent: KernelMessage) -> None:
        """A message is the same before it is stored and after, in every field and every byte of its parts."""
        draft = to_draft(sent, KERNEL, "stream")
        assert to_message(record(draft)) == sent

    @given(messages())
    def test_every_payload_is_the_jupyter_message_as_json(self, sent: KernelMessage) -> None:
        """A payload is one JSON object with the four parts, and with the buffers only where there are any."""
        payload = msgspec.json.decode(to_draft(sent, KERNEL, "stream").payload)
        parts = ["header", "parent_header", "metadata", "content"]
        assert list(payload) == ([*parts, "buffers"] if sent.buffers else parts)
        assert payload["content"] == msgspec.json.decode(sent.content)

    def test_the_parts_are_joined_and_not_encoded_again(self) -> None:
        """Even the way a kernel writes its numbers and spaces stays as it was."""
        content = b'{"text" : "\\u00e9",  "n":1.50e+1, "name":"stdout"}'
        draft = iopub(message("stream", content))
        assert content in draft.payload
        assert to_message(record(draft)).content == content

    def test_headers_tell_what_readers_select_by(self) -> None:
        """The headers are strings: type, channel, parent, kernel, user and session."""
        headers = msgspec.json.decode(iopub(stream("x")).headers)
        assert headers == {
            "msg_type": "stream",
            "channel": "stream",
            "parent_id": REQUEST,
            "kernel_id": KERNEL,
            "username": "u",
            "session": "s",
        }

    def test_headers_tell_the_number_in_the_spool(self) -> None:
        """A message that came by its keeper carries its number; one that did not has none, and events have none."""
        numbered = record(iopub(msgspec.structs.replace(stream("x"), seq=41)))
        assert msgspec.json.decode(numbered.headers)["seq"] == "41" and seq_of(numbered) == 41
        assert read_headers(numbered) == read_headers(record(iopub(stream("x"))))
        assert seq_of(record(iopub(stream("x")))) is None
        assert seq_of(record(event("started"))) is None

    def test_a_channel_may_be_given_as_the_enum(self) -> None:
        """``Channel.STREAM`` and ``"stream"`` give the same draft."""
        said = stream("x")
        assert to_draft(said, KERNEL, Channel.STREAM) == to_draft(said, KERNEL, "stream")

    def test_a_message_without_parent_has_an_empty_one(self) -> None:
        """An absent parent is ``{}`` and its id empty, never null."""
        draft = iopub(message("status", {"execution_state": "starting"}, parent_id=""))
        assert msgspec.json.decode(draft.payload)["parent_header"] == {}
        assert read_headers(record(draft)).parent_id == ""

    @pytest.mark.parametrize("parent", [b"null", b"{}"])
    def test_what_the_wire_gives_can_be_stored(self, parent: bytes) -> None:
        """Line breaks, invalid UTF-8, half a character, NaN and a null parent end as one line of JSON."""
        wire = Wire(b"")
        header = b'{"msg_id": "m1",\n "msg_type": "stream"}'
        content = b'{"text": "\xff \\ud83d",\r\n "x": NaN}'
        said = wire.decode([b"stream", b"<IDS|MSG>", b"", header, parent, b"{}", content])
        assert isinstance(said, KernelMessage)
        draft = to_draft(said, KERNEL, "stream")
        assert b"\n" not in draft.payload and b"\r" not in draft.payload
        decoded = msgspec.json.decode(draft.payload)
        assert decoded["parent_header"] == {}
        assert decoded["content"] == {"text": "\ufffd \ufffd", "x": None}
        assert to_message(record(draft)).content == said.content

    def test_the_time_is_the_records_own(self) -> None:
        """A message that is read back came when the log stored it."""
        assert to_message(record(iopub(stream("x", received_us=5)), ts_us=77)).received_us == 77

    @pytest.mark.parametrize("payload", [b"", b"[]", b'{"a":1}', b'{"header":{}', b"\xff"])
    def test_what_is_no_kernel_message_is_refused(self, payload: bytes) -> None:
        """``to_message`` raises a decoding error for a payload that no draft of ours has."""
        with pytest.raises(msgspec.DecodeError):
            to_message(record(Draft("x", payload)))

    @pytest.mark.parametrize("headers", [b"", b"[]", b'{"channel":1}', b"{}", b'{"channel":"\xff"}'])
    def test_headers_of_foreign_records_are_empty(self, headers: bytes) -> None:
        """A record that is not a kernel's has no type and no channel, and raises nothing."""
        assert read_headers(Record("t", 0, 0, "x", headers, b"{}")) == RecordHeaders()


class TestIds:
    def test_the_id_of_a_record_is_the_id_of_its_message(self) -> None:
        """A sane Jupyter id is the record's id as it is."""
        assert iopub(stream("x", msg_id="0a1b_17_3")).id == "0a1b_17_3"

    @pytest.mark.parametrize("msg_id", ["a\nb", "a\0", "x" * (ID_LENGTH_MAX + 1), "\ud83d", ""])
    def test_an_id_that_is_not_sane_is_replaced_by_one_made_of_it(self, msg_id: str) -> None:
        """Ids that are too long or cannot be printed become the same UUID each time."""
        assert stored_id(msg_id) == stored_id(msg_id) == str(UUID(stored_id(msg_id)))

    @given(st.text(), st.text())
    def test_different_ids_stay_different(self, one: str, other: str) -> None:
        """Two messages share a record id only if they share their own."""
        assert (stored_id(one) == stored_id(other)) == (one == other)

    def test_messages_without_an_id_are_told_apart_by_what_they_say(self) -> None:
        """An empty id is no id: storing two such messages must not store one."""
        one, other = stream("1", msg_id=""), stream("2", msg_id="")
        assert record_id(one) != record_id(other)
        assert record_id(one) == record_id(stream("1", msg_id=""))


class TestEvents:
    @pytest.mark.parametrize("name", list(KernelEvent))
    def test_an_event_is_a_message_of_our_own(self, name: KernelEvent) -> None:
        """Events are read like messages: type ``kernel_event``, channel ``kernel``, the name in the content."""
        stored = record(event_draft(KERNEL, name, request_id=REQUEST, session="s", reason="why"))
        headers, said = read_headers(stored), to_message(stored)
        assert (headers.channel, headers.msg_type, headers.kernel_id) == ("kernel", "kernel_event", KERNEL)
        assert (said.parent_id, said.session, said.msg_id) == (REQUEST, "s", stored.id)
        assert said.decoded_content() == {"event": name.value, "reason": "why"}
        assert msgspec.json.decode(said.parent_header) == {"msg_id": REQUEST}

    def test_an_event_of_the_kernel_itself_has_no_parent(self) -> None:
        """Without a request the parent is ``{}`` and its id empty."""
        stored = record(event("started", ""))
        assert to_message(stored).parent_header == b"{}"
        assert read_headers(stored).parent_id == ""

    def test_each_event_has_an_id_of_its_own(self) -> None:
        """The same event twice is two records."""
        assert event("started").id != event("started").id

    def test_text_that_is_not_unicode_does_not_keep_an_event_out(self) -> None:
        """A path with undecodable bytes is told as well as it can be."""
        said = to_message(record(event("died", reason="no \udcff here")))
        assert said.decoded_content()["reason"] == "no ? here"
