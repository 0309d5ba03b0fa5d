"""The IOPub thread: one thread receives the messages of all kernels, and routes them in batches.

It reads the spool of a kept kernel, and a socket for any other.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import zmq
from zmq.utils.monitor import parse_monitor_message

from himalia.iopub.broker import IopubBroker
from himalia.jupyter.burst import BurstDetector
from himalia.jupyter.connection_file import ConnectionInfo
from himalia.jupyter.wire import NOT_ON_IOPUB, Fault, KernelMessage, Wire, WireLimits
from himalia.throttle import LogThrottle

logger = logging.getLogger("himalia.iopub.listener")

POLL_MS = 100
"""The longest wait of the thread, so that periodic work is done in an idle process too."""
BATCH_MAX = 512
"""Messages received from one socket before the next has its turn."""
BATCH_BYTES_MAX = 8 << 20
GATHER_S = 0.005
"""A pause in a flood, so that its messages come in batches: each batch costs a commit."""
RECONNECT_AFTER_MS = 20
WELCOME_WITHIN_S = 2.0


class KernelFeed(Protocol):
    """The source of one kernel's messages. Except for its attributes, used in the thread only."""

    @property
    def name(self) -> str:
        """Its name in the server's own log."""

    @property
    def closed(self) -> threading.Event:
        """Set by the thread when no more messages will be routed."""

    @property
    def source(self) -> Any:
        """What to wait for, a ZeroMQ socket or a descriptor; None without one."""

    @property
    def is_flooding(self) -> bool:
        """Whether the thread should pause before it drains again, so that messages come in larger batches."""

    def open(self, context: zmq.Context[zmq.Socket[bytes]]) -> None: ...

    def drain(self) -> bool:
        """Route what is waiting, up to a batch; return whether there may be more. Must not block."""

    def periodic(self) -> bool:
        """Called about every 100 ms, whether anything came or not; returns what ``drain`` returns."""

    def close(self) -> None: ...


class Listener(Protocol):
    """Gets the messages of one kernel. Called in the thread; must not block."""

    def on_messages(self, messages: Sequence[KernelMessage]) -> None: ...

    def on_faults(self, faults: Sequence[Fault]) -> None: ...

    def periodic(self) -> None:
        """Called about every 100 ms, whether anything came or not."""


class Feed:
    """One kernel's IOPub socket, and its listener.

    ``on_break`` is called when the socket has connected again after the connection broke, for example because another
    program restarted the kernel. What the kernel published meanwhile is lost.
    """

    def __init__(
        self,
        connection: ConnectionInfo,
        wire: Wire,
        listener: Listener,
        on_break: Callable[[], None] | None = None,
    ) -> None:
        self.connection = connection
        self.wire = wire
        self.listener = listener
        self.name = connection.endpoint("iopub")
        self.source: zmq.Socket[bytes] | None = None
        self.closed = threading.Event()
        self.is_flooding = False
        self._on_break = on_break
        self._monitor: zmq.Socket[bytes] | None = None
        self._is_broken = False
        self._burst = BurstDetector()
        self._fault_log = LogThrottle()

    def open(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        socket = context.socket(zmq.SUB)
        # ZeroMQ would drop messages silently at its own limit; the listener bounds memory.
        socket.rcvhwm = 0
        socket.linger = 0
        # A kernel that starts does not listen yet, and by default ZeroMQ connects again only after 100 ms.
        socket.reconnect_ivl = RECONNECT_AFTER_MS
        self.connection.secure(socket)
        # Before connecting, so that nothing published in between is missed.
        socket.subscribe(b"")
        if self._on_break is not None:
            self._monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
        socket.connect(self.name)
        self.source = socket

    def drain(self) -> bool:
        assert self.source is not None
        self._check_monitor()
        receive, decode = self.source.recv_multipart, self.wire.decode
        messages: list[KernelMessage] = []
        faults: list[Fault] = []
        size = 0
        more = True
        while len(messages) + len(faults) < BATCH_MAX and size < BATCH_BYTES_MAX:
            try:
                frames = receive(zmq.NOBLOCK)
            except zmq.Again:
                more = False
                break
            decoded = decode(frames)
            if isinstance(decoded, Fault):
                faults.append(decoded)
                size += decoded.size_bytes
            else:
                messages.append(decoded)
                size += len(decoded.content)
        if messages:
            self.listener.on_messages(messages)
        if faults:
            self._log_faults(faults)
            self.listener.on_faults(faults)
        self.is_flooding = self._is_flood(messages) and not more
        return more

    def periodic(self) -> bool:
        self._check_monitor()
        self.listener.periodic()
        return False

    def close(self) -> None:
        if self.source is not None:
            if self._monitor is not None:
                self.source.disable_monitor()
                self._monitor.close(linger=0)
                self._monitor = None
            self.source.close()
            self.source = None

    def _check_monitor(self) -> None:
        """Report a break once it is over: the next message is behind the gap."""
        while self._monitor is not None and self._on_break is not None:
            try:
                event = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))["event"]
            except zmq.Again:
                return
            if event == zmq.EVENT_DISCONNECTED:
                self._is_broken = True
            elif self._is_broken:
                self._is_broken = False
                self._on_break()

    def _is_flood(self, messages: Sequence[KernelMessage]) -> bool:
        now_s = time.monotonic()
        if any(message.msg_type == "status" for message in messages):
            self._burst.reset(now_s)
            return False
        return self._burst.add(len(messages), now_s)

    def _log_faults(self, faults: Sequence[Fault]) -> None:
        if self._fault_log.allow():
            first = faults[0]
            logger.warning(
                "%s sent %d messages that were refused, the first: %s (%s)",
                self.name,
                len(faults),
                first.kind,
                first.detail,
            )


class IopubThread:
    """The thread. Its public methods may be called from any thread."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._poller = zmq.Poller()
        self._feeds: list[KernelFeed] = []
        # What is polled, by feed; some feeds have nothing to poll.
        self._watched: dict[KernelFeed, Any] = {}
        # Those that had more than a batch, and are drained again without waiting.
        self._behind: list[KernelFeed] = []
        self._commands: deque[Callable[[], None]] = deque()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._poller.register(self._wake_read, zmq.POLLIN)
        self._stopping = False
        self._has_ended = False
        self._lock = threading.Lock()
        self._periodic_s = 0.0
        self._thread = threading.Thread(target=self._run, name="himalia-iopub", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Close all sockets; returns when the thread has ended. May be called again."""
        self._stopping = True
        with self._lock:
            if self._has_ended:
                return
            self._wake()
        self._thread.join()
        with self._lock:
            if self._has_ended:
                return
            self._has_ended = True
            os.close(self._wake_read)
            os.close(self._wake_write)
        # Run the commands that came too late: their callers may wait for them.
        while self._commands:
            self._commands.popleft()()

    def add(self, feed: KernelFeed) -> None:
        """Start to listen. The feed is opened soon after this returns."""
        self._command(lambda: self._add(feed))

    def remove(self, feed: KernelFeed) -> None:
        """Stop listening; ``feed.closed`` is set when no more messages will be routed."""
        self._command(lambda: self._remove(feed))

    def call(self, work: Callable[[], None]) -> None:
        """Call ``work`` in the thread, soon."""
        self._command(work)

    def _command(self, command: Callable[[], None]) -> None:
        with self._lock:
            # After the end its descriptor may belong to another file.
            if not self._has_ended:
                self._commands.append(command)
                self._wake()
                return
        command()

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"x")
        except BlockingIOError:
            pass  # the pipe is full, so the thread wakes up

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        finally:
            for feed in list(self._feeds):
                self._remove(feed)
            self._context.term()

    def _turn(self) -> None:
        ready = dict(self._poller.poll(0 if self._behind else POLL_MS))
        if self._wake_read in ready:
            self._run_commands()
        ready_feeds = [feed for feed, source in self._watched.items() if source in ready]
        due = [*ready_feeds, *(feed for feed in self._behind if feed not in ready_feeds)]
        self._behind = [feed for feed in due if self._drain(feed)]
        now_s = time.monotonic()
        if not self._behind and any(feed.is_flooding for feed in due):
            time.sleep(GATHER_S)
        if now_s >= self._periodic_s:
            self._periodic_s = now_s + POLL_MS / 1000
            for feed in list(self._feeds):
                if self._call(feed, feed.periodic) and feed not in self._behind:
                    self._behind.append(feed)

    def _drain(self, feed: KernelFeed) -> bool:
        has_more = self._call(feed, feed.drain)
        if feed.source is None:
            self._unwatch(feed)
        return has_more

    def _call(self, feed: KernelFeed, work: Callable[[], bool]) -> bool:
        try:
            return work()
        except Exception:  # a bug on one kernel may not end listening to all others
            logger.exception("listening to %s failed", feed.name)
            return False

    def _run_commands(self) -> None:
        try:
            os.read(self._wake_read, 4096)
        except BlockingIOError:
            pass
        while self._commands:
            try:
                self._commands.popleft()()
            except Exception:  # as in _call
                logger.exception("a command of the IOPub thread failed")

    def _add(self, feed: KernelFeed) -> None:
        if self._stopping:
            feed.closed.set()
            return
        try:
            feed.open(self._context)
        except zmq.ZMQError:
            logger.exception("cannot listen to %s", feed.name)
            feed.closed.set()
            return
        self._feeds.append(feed)
        # Messages may have come already.
        self._behind.append(feed)
        if feed.source is not None:
            self._watched[feed] = feed.source
            self._poller.register(feed.source, zmq.POLLIN)

    def _unwatch(self, feed: KernelFeed) -> None:
        source = self._watched.pop(feed, None)
        if source is not None:
            self._poller.unregister(source)

    def _remove(self, feed: KernelFeed) -> None:
        if feed in self._feeds:
            self._feeds.remove(feed)
            self._unwatch(feed)
            feed.close()
        if feed in self._behind:
            self._behind.remove(feed)
        feed.closed.set()


class BrokerListener:
    """Routes messages to a broker, and lets it clean up when it is time."""

    def __init__(
        self, broker: IopubBroker, on_faults: Callable[[Sequence[Fault]], None] | None = None
    ) -> None:
        self._broker = broker
        self._report_faults = on_faults

    def on_messages(self, messages: Sequence[KernelMessage]) -> None:
        self._broker.route_messages(messages)

    def on_faults(self, faults: Sequence[Fault]) -> None:
        # The wire has counted them.
        if self._report_faults is not None:
            self._report_faults(faults)

    def periodic(self) -> None:
        self._broker.cleanup_if_due()


class _FirstMessage:
    """A subscriber that waits for the first message of any request."""

    def __init__(self) -> None:
        self.received = threading.Event()

    def offer(self, messages: Sequence[KernelMessage]) -> bool:
        self.received.set()
        return False  # end the subscription


def start_iopub_thread(
    connection: ConnectionInfo, broker: IopubBroker, *, welcome_within_s: float = WELCOME_WITHIN_S
) -> IopubThread:
    """Listen to one kernel and route what it publishes. The caller stops the thread.

    Returns when the first message came, so that nothing of a request that is sent then is missed: new kernels welcome
    every subscriber. Returns in any case after ``welcome_within_s``.
    """
    scheme = connection.signature_scheme
    wire = Wire(connection.key.encode(), scheme=scheme, limits=WireLimits(refused_types=NOT_ON_IOPUB))
    first = _FirstMessage()
    broker.add_global_subscriber(first)
    thread = IopubThread()
    thread.start()
    thread.add(Feed(connection, wire, BrokerListener(broker)))
    first.received.wait(welcome_within_s)
    broker.remove_global_subscriber(first)
    return thread
