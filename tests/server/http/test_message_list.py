"""A list of messages that is decoded while it comes in: the same messages, or an error, however it is cut."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest

from himalia.errors import BadRequest, MessageTooLarge
from himalia.protocol.models import IncomingMessage
from himalia.server.http.message_list import MessageList
from himalia.server.rest.publish_body import decode_messages


def decoded(text: bytes, cuts: list[int], element_bytes_max: int = 1 << 20) -> list[IncomingMessage]:
    messages = MessageList(decode_messages, element_bytes_max)
    found = []
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        found += messages.feed(text[begin:end])
    return found + messages.finish()


def simple(messages: list[IncomingMessage]) -> list[Any]:
    return [(message.id, bytes(message.payload), message.headers) for message in messages]


SOUND = [
    b"[]",
    b" [ ] ",
    b'[{"payload":1}]',
    b'\n[ {"payload" : [ {"a":{}} , [] ] , "headers":{"k":"}],[{"}} , {"payload":null} ]\n',
    rb'[{"payload":"a\"}]\\"},{"payload":{"\\":"[","x":"\u005d"}}]',
    '[{"payload":"größe ]}"},{"payload":{"ü":[[[{}]]]}}]'.encode(),
    b'[{"payload":1e400},{"payload":12345678901234567890123},{"payload":{"a":1,"a":2}}]',
]


@pytest.mark.parametrize("text", SOUND)
def test_wherever_it_is_cut_the_messages_are_the_same(text: bytes) -> None:
    """One cut at every byte, every byte by itself, and none at all."""
    whole = simple(decode_messages(text))
    for cut in range(len(text) + 1):
        assert simple(decoded(text, [cut])) == whole
    assert simple(decoded(text, list(range(len(text))))) == whole


UNSOUND = [
    b"[",
    b'[{"payload":1}',
    b'[{"payload":1},]',
    b'[{"payload":1},,{"payload":2}]',
    b'[,{"payload":1}]',
    b'[{"payload":1}{"payload":2}]',
    b'[{"payload":1} "x" {"payload":2}]',
    b'[{"payload":1},2]',
    b'[{"payload":1},"x",{"payload":2}]',
    b'[{"payload":1}]]',
    b'[{"payload":1}]x',
    b'[{"payload":1}][{"payload":2}]',
    b'[{"payload":1]}',
    b'[{"payload":[1}]}]',
    b'[{"payload":1},{"payload":[2}]]',
    b'[{"payload":"x},{"payload":2}]',
    b'[{"payload":"\xff"}]',
    b'[{"payload":1},{"id":"2"}]',
    b'[[{"payload":1}]]',
    b"[1,2]",
]


@pytest.mark.parametrize("text", UNSOUND)
def test_what_is_not_sound_is_refused_wherever_it_is_cut(text: bytes) -> None:
    """No cut makes a list of what is none as a whole."""
    with pytest.raises(BadRequest):
        decode_messages(text)
    for cut in range(len(text) + 1):
        with pytest.raises(BadRequest):
            decoded(text, [cut])
    with pytest.raises(BadRequest):
        decoded(text, list(range(len(text))))


def test_random_lists_in_random_pieces() -> None:
    """Generated messages, some of them damaged by a byte: the same answer as from the whole text."""
    chance = random.Random(13)
    letters = ["{", "}", "[", "]", '"', "\\", ",", ":", "a", "ü", " "]

    def value(depth: int) -> Any:
        kind = chance.randint(0, 5 if depth < 4 else 3)
        if kind == 4:
            return [value(depth + 1) for _ in range(chance.randint(0, 4))]
        if kind == 5:
            return {value_text(): value(depth + 1) for _ in range(chance.randint(0, 4))}
        return [None, chance.random(), value_text(), True][kind]

    def value_text() -> str:
        return "".join(chance.choices(letters, k=chance.randint(0, 6)))

    sound = 0
    for _ in range(3000):
        messages = [{"payload": value(0)} for _ in range(chance.randint(0, 6))]
        text = bytearray(json.dumps(messages, ensure_ascii=chance.random() < 0.5).encode())
        if chance.random() < 0.4:
            text[chance.randrange(len(text))] = chance.choice(b'{}[]",\\ 1')
        if not text.lstrip().startswith(b"["):
            continue
        cuts = sorted(chance.choices(range(len(text) + 1), k=chance.randint(0, 8)))
        try:
            expected = simple(decode_messages(bytes(text)))
        except BadRequest:
            with pytest.raises(BadRequest):
                decoded(bytes(text), cuts)
        else:
            sound += 1
            assert simple(decoded(bytes(text), cuts)) == expected
    assert sound > 1000


def test_an_element_without_end_is_refused() -> None:
    """Only what is not whole yet is kept, and that has a limit."""
    with pytest.raises(MessageTooLarge):
        decoded(b'[{"payload":"' + b"x" * 10_000, list(range(0, 10_000, 100)), 1000)


def test_the_error_says_how_far_it_came() -> None:
    """A long list is not refused without a hint where to look."""
    messages = MessageList(decode_messages, 1000)
    messages.feed(b"[" + b'{"payload":1},' * 49 + b'{"payload":1}')
    with pytest.raises(BadRequest, match="after the first 50 messages"):
        messages.feed(b',{"playload":1}')


def test_what_is_whole_is_not_kept() -> None:
    """Memory holds one element that has not ended, not the text of the list."""
    messages = MessageList(msgspec.json.Decoder(list[Any]).decode, 1000)
    for _ in range(1000):
        messages.feed(b'[{"payload":0}' if not messages.count else b',{"payload":0}')
        assert len(messages._text) == 0
    assert messages.count == 1000
