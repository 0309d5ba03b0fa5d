"""The reading side of a request: its messages by channel, in order of arrival, or by their content."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from himalia.iopub.channels import Numbered, RequestChannels
from himalia.jupyter.channels import Channel
from himalia.jupyter.wire import KernelMessage


class Receiver:
    """The receiving end of one channel."""

    __slots__ = ("_channel", "_channels")

    def __init__(self, channels: RequestChannels, channel: Channel) -> None:
        self._channels = channels
        self._channel = channel

    def recv(self, timeout_s: float | None = None) -> KernelMessage | None:
        """Wait for the next message; None if none comes in time, or if the request is complete and none is left."""
        item = self._channels.pop(self._channel, _deadline_s(timeout_s))
        return item.message if item is not None else None

    def drain(self) -> list[KernelMessage]:
        """Return the messages that wait now. Never waits."""
        return [item.message for item in self._channels.pop_all(self._channel)]

    def __len__(self) -> int:
        return self._channels.waiting(self._channel)


class ExecutionCollector:
    """Reads what the broker delivers into ``channels``. Thread-safe; reading a message removes it.

    Every wait ends at once when the request is complete, that is, when both ``idle`` and the shell's reply have
    come or the request was ended otherwise; a timeout of None waits for that without a limit.
    """

    __slots__ = ("_channels",)

    def __init__(self, channels: RequestChannels) -> None:
        self._channels = channels

    @property
    def status_rx(self) -> Receiver:
        return Receiver(self._channels, Channel.STATUS)

    @property
    def execution_rx(self) -> Receiver:
        return Receiver(self._channels, Channel.EXECUTION)

    @property
    def stream_rx(self) -> Receiver:
        return Receiver(self._channels, Channel.STREAM)

    @property
    def display_rx(self) -> Receiver:
        return Receiver(self._channels, Channel.DISPLAY)

    @property
    def comm_rx(self) -> Receiver:
        return Receiver(self._channels, Channel.COMM)

    def recv(self, channel: Channel, timeout_s: float | None = None) -> KernelMessage | None:
        """Wait for the channel's next message; None if none comes in time, or the request is complete without one."""
        return Receiver(self._channels, channel).recv(timeout_s)

    def in_order(self) -> list[Numbered]:
        """Return the messages that wait now, of all channels, in order of arrival. Never waits.

        A gap in their numbers is a message that was dropped, or read by other means.
        """
        return self._channels.pop_all()

    def follow(self, timeout_s: float | None = None) -> Iterator[KernelMessage]:
        """Iterate over the messages of all channels in order of arrival, until the request is complete."""
        deadline_s = _deadline_s(timeout_s)
        while items := self._channels.wait_all(deadline_s):
            for item in items:
                yield item.message

    def collect(self, timeout_s: float | None = None) -> list[KernelMessage]:
        """Return all messages until the request is complete or the time is over; ``is_complete`` tells which.

        They are read as they come, so that no channel overflows meanwhile.
        """
        return list(self.follow(timeout_s))

    def wait_for(
        self, predicate: Callable[[KernelMessage], bool], timeout_s: float | None = None
    ) -> KernelMessage | None:
        """Wait for the first message, in order of arrival, for which this is true. All others can still be read.

        None if there is none in time, or if the request is complete without one.
        """
        item = self._channels.pop_first(predicate, _deadline_s(timeout_s))
        return item.message if item is not None else None

    def wait_complete(self, timeout_s: float | None = None) -> bool:
        """Wait for the end without reading; channels that fill up meanwhile drop their oldest messages."""
        return self._channels.wait_complete(_deadline_s(timeout_s))

    def close(self) -> None:
        """Read no more. The broker removes the request when it notices."""
        self._channels.close()

    @property
    def is_complete(self) -> bool:
        return self._channels.is_complete

    @property
    def is_idle(self) -> bool:
        return self._channels.is_idle

    @property
    def reply(self) -> KernelMessage | None:
        """The shell's reply, once it has come."""
        return self._channels.shell_reply

    @property
    def ended(self) -> str | None:
        """How the request ended if not by idle and reply: the status passed to ``RequestChannels.end``."""
        return self._channels.ended

    @property
    def dropped(self) -> int:
        """Messages that were dropped because a channel was full. The log has them."""
        return self._channels.dropped


def _deadline_s(timeout_s: float | None) -> float | None:
    return None if timeout_s is None else time.monotonic() + timeout_s
