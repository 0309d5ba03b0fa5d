"""Five bounded channels, and when a request is complete."""

from __future__ import annotations

import pytest

from himalia.iopub.channels import RequestChannels, Sink
from himalia.jupyter.channels import Channel, channel_of, is_idle
from himalia.jupyter.wire import KernelMessage
from tests.jupyter.kernel_messages import message, reply, status

SHELL_AND_CONTROL = [
    "execute", "inspect", "complete", "history", "is_complete", "connect", "comm_info", "kernel_info", "shutdown",
    "interrupt", "debug", "create_subshell", "delete_subshell", "list_subshell",
]  # fmt: skip


@pytest.mark.parametrize(
    ("channel", "types"),
    [
        (Channel.STATUS, ["status"]),
        (Channel.EXECUTION, ["execute_input", "execute_result", "error"]),
        (Channel.EXECUTION, ["debug_event", "iopub_welcome", "shutdown_reply", "input_request"]),
        (Channel.EXECUTION, [f"{name}_{end}" for name in SHELL_AND_CONTROL for end in ("request", "reply")]),
        (Channel.EXECUTION, ["input_reply", "", "something_new", "STREAM"]),
        (Channel.STREAM, ["stream"]),
        (Channel.DISPLAY, ["display_data", "update_display_data", "clear_output"]),
        (Channel.COMM, ["comm_open", "comm_msg", "comm_close"]),
    ],
)
def test_every_type_has_its_channel(channel: Channel, types: list[str]) -> None:
    """Each type of protocol 5.4 has a place, and one that is not of it goes to the execution channel."""
    assert {channel_of(msg_type) for msg_type in types} == {channel}


def test_the_channels_have_the_seeds_names() -> None:
    """status, execution, stream, display, comm: also the words in a record's headers."""
    assert [channel.value for channel in Channel] == ["status", "execution", "stream", "display", "comm"]


def test_request_channels_are_a_sink() -> None:
    """They can be registered with a broker as they are."""
    sink: Sink = RequestChannels()
    assert sink.deliver(message(), Channel.STREAM, 0) is True


def test_each_channel_keeps_its_own_in_order() -> None:
    """Reading one channel leaves the others alone."""
    channels = RequestChannels()
    sent = [message(kind) for kind in ("stream", "comm_msg", "stream", "error")]
    for number, one in enumerate(sent):
        channels.deliver(one, channel_of(one.msg_type), number)
    assert [item.message for item in channels.pop_all(Channel.STREAM)] == [sent[0], sent[2]]
    assert [item.sequence for item in channels.pop_all()] == [1, 3]


def test_messages_can_be_sent_into_a_channel_by_its_name() -> None:
    """The five senders of the seed number what they send in one series."""
    channels = RequestChannels()
    senders = [
        channels.status_tx,
        channels.execution_tx,
        channels.stream_tx,
        channels.display_tx,
        channels.comm_tx,
    ]
    assert all(sender.send(message()) for sender in senders)
    found = channels.pop_all()
    assert [item.channel for item in found] == list(Channel)
    assert [item.sequence for item in found] == [0, 1, 2, 3, 4]


def test_a_full_channel_drops_its_oldest_and_counts() -> None:
    """A flood on one channel costs only that channel's oldest, and the numbers tell which."""
    channels = RequestChannels(limit=10)
    channels.deliver(status("busy"), Channel.STATUS, 0)
    for number in range(1, 101):
        channels.deliver(message(), Channel.STREAM, number)
    assert channels.dropped == 90
    assert channels.dropped_by_channel() == {Channel.STREAM: 90}
    assert [item.sequence for item in channels.pop_all()] == [0, *range(91, 101)]


def test_a_channel_is_bounded_in_bytes_too() -> None:
    """Large messages push out older ones; one alone may be as large as it likes."""
    channels = RequestChannels(bytes_max=1000)
    for number in range(5):
        channels.deliver(message(text="x" * 400), Channel.STREAM, number)
    assert [item.sequence for item in channels.pop_all()] == [3, 4]
    channels.deliver(message(text="x" * 5000), Channel.STREAM, 5)
    assert channels.waiting() == 1
    assert channels.dropped == 3


def test_reading_makes_room() -> None:
    """Bytes and messages that were read do not count any more."""
    channels = RequestChannels(limit=2, bytes_max=1000)
    for number in range(50):
        channels.deliver(message(text="x" * 400), Channel.STREAM, number)
        assert len(channels.pop_all()) == 1
    assert channels.dropped == 0


@pytest.mark.parametrize("reply_first", [True, False])
def test_complete_when_both_idle_and_reply_have_come(reply_first: bool) -> None:
    """Neither alone ends a request, whichever comes first."""
    channels = RequestChannels()
    channels.deliver(status("busy"), Channel.STATUS, 0)
    steps = [lambda: channels.deliver(status("idle"), Channel.STATUS, 1), lambda: channels.reply(answer)]
    answer = reply()
    for step in reversed(steps) if reply_first else steps:
        assert not channels.is_complete
        step()
    assert channels.is_complete
    assert channels.shell_reply is answer
    assert channels.ended is None


def test_output_after_completion_is_still_taken() -> None:
    """A thread of the cell may print after idle."""
    channels = RequestChannels()
    channels.deliver(status("idle"), Channel.STATUS, 0)
    channels.reply(reply())
    late = message()
    channels.deliver(late, Channel.STREAM, 1)
    assert channels.pop_all(Channel.STREAM)[0].message is late


def test_the_first_end_counts() -> None:
    """A kernel that died is not a timeout later, and what is complete cannot go stale."""
    died, done = RequestChannels(), RequestChannels()
    assert died.end("died")
    assert not died.end("timeout")
    assert died.is_complete
    assert died.ended == "died"
    done.reply(reply())
    done.deliver(status("idle"), Channel.STATUS, 0)
    done.expire()
    assert done.ended is None


def test_an_expired_request_is_stale() -> None:
    """The broker's expiry is an end like others."""
    channels = RequestChannels()
    channels.expire()
    assert channels.ended == "stale"


def test_closed_channels_take_nothing() -> None:
    """Whoever stopped reading keeps no memory, and the router learns it from the next message."""
    channels = RequestChannels()
    channels.deliver(message(), Channel.STREAM, 0)
    channels.close()
    assert channels.deliver(message(), Channel.STREAM, 1) is False
    assert channels.stream_tx.send(message()) is False
    assert channels.waiting() == 0


def test_a_flood_wakes_the_reader_once() -> None:
    """on_message is called again only after something was read, and once more for the end."""
    calls: list[int] = []
    channels = RequestChannels(on_message=lambda: calls.append(channels.waiting()))
    for number in range(100):
        channels.deliver(message(), Channel.STREAM, number)
    assert calls == [1]
    channels.pop_all()
    channels.deliver(status("idle"), Channel.STATUS, 100)
    assert calls == [1, 1]
    channels.reply(reply())
    assert calls == [1, 1, 1]
    channels.deliver(message(), Channel.STREAM, 101)
    assert len(calls) == 3


@pytest.mark.parametrize("content", [b"[]", b"{}", b'{"execution_state":1}', b"nonsense"])
def test_an_odd_status_is_not_idle(content: bytes) -> None:
    """Only the word itself ends a request."""
    odd = KernelMessage(msg_id="m", msg_type="status", header=b"{}", content=content)
    assert not is_idle(odd)
    assert not is_idle(message("stream", execution_state="idle"))
    assert is_idle(status("idle"))
