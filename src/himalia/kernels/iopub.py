"""Listening to IOPub: one thread drains the sockets of all kernels and hands over what came, in batches."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import zmq

from himalia.kernels.broker import IopubBroker
from himalia.kernels.connection_file import ConnectionInfo
from himalia.kernels.wire import Fault, KernelMessage, Wire

logger = logging.getLogger("himalia.kernels.iopub")

POLL_MS = 100
"""The longest the thread sleeps, so that periodic work is done in an idle process too."""
BATCH_MAX = 512
"""Messages taken from one socket before the next has its turn."""
BATCH_BYTES_MAX = 8 << 20
FLOOD_TURNS = 16
FLOOD_WINDOW_S = 0.02
"""So many turns with messages in so short a time are a flood."""
GATHER_S = 0.005
"""A pause in a flood, so that its messages come in batches: each batch costs a commit."""
RECONNECT_AFTER_MS = 20
LOG_FAULTS_EVERY_S = 10.0


class Listener(Protocol):
    """Who gets the messages of one kernel. Called in the thread; must not block."""

    def received(self, messages: Sequence[KernelMessage]) -> None: ...

    def faulty(self, faults: Sequence[Fault]) -> None: ...

    def periodic(self) -> None:
        """Called about every 100 ms, whether anything came or not."""


class Feed:
    """One kernel's IOPub socket and who listens to it."""

    def __init__(self, connection: ConnectionInfo, wire: Wire, listener: Listener) -> None:
        self.connection = connection
        self.wire = wire
        self.listener = listener
        self.socket: zmq.Socket[bytes] | None = None
        self.closed = threading.Event()
        self._complained_s = 0.0

    def open(self, context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
        socket = context.socket(zmq.SUB)
        # ZeroMQ would drop silently at its own limit; what bounds memory here is the listener.
        socket.rcvhwm = 0
        socket.linger = 0
        # A kernel that starts does not listen yet, and ZeroMQ would look again only after 100 ms.
        socket.reconnect_ivl = RECONNECT_AFTER_MS
        self.connection.secure(socket)
        # Before connecting, so that nothing published in between is missed.
        socket.subscribe(b"")
        socket.connect(self.connection.endpoint("iopub"))
        self.socket = socket
        return socket

    def drain(self) -> bool:
        """Hand over what is waiting, up to a batch; says whether there may be more."""
        assert self.socket is not None
        receive, decode = self.socket.recv_multipart, self.wire.decode
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
            self.listener.received(messages)
        if faults:
            self._complain(faults)
            self.listener.faulty(faults)
        return more

    def _complain(self, faults: Sequence[Fault]) -> None:
        # Whoever sends rubbish could otherwise fill the server's log.
        now_s = time.monotonic()
        if now_s - self._complained_s >= LOG_FAULTS_EVERY_S:
            self._complained_s = now_s
            logger.warning(
                "%s sent %d messages that were refused, the first: %s (%s)",
                self.connection.endpoint("iopub"),
                len(faults),
                faults[0].kind,
                faults[0].detail,
            )


class Flood:
    """Whether messages come so thick that it pays to let some gather."""

    def __init__(self) -> None:
        self._began_s = 0.0
        self._turns = 0
        self._is_on = False

    def is_on(self, now_s: float) -> bool:
        """Called for each turn that brought messages."""
        self._turns += 1
        if now_s - self._began_s >= FLOOD_WINDOW_S:
            # While gathering there are at most as many turns as pauses in the window.
            wanted = FLOOD_WINDOW_S / GATHER_S / 2 if self._is_on else FLOOD_TURNS
            self._is_on = self._turns >= wanted and now_s - self._began_s < 2 * FLOOD_WINDOW_S
            self._began_s, self._turns = now_s, 0
        return self._is_on


class IopubThread:
    """The thread. ``add`` and ``remove`` may be called from any other."""

    def __init__(self) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._poller = zmq.Poller()
        self._feeds: dict[zmq.Socket[bytes], Feed] = {}
        self._commands: deque[Callable[[], None]] = deque()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        self._poller.register(self._wake_read, zmq.POLLIN)
        self._stopping = False
        self._has_ended = False
        self._lock = threading.Lock()
        self._periodic_s = 0.0
        self._flood = Flood()
        self._thread = threading.Thread(target=self._run, name="himalia-iopub", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Close all sockets; returns when the thread has ended. May be called again."""
        if self._has_ended:
            return
        self._stopping = True
        self._wake()
        self._thread.join()
        with self._lock:
            self._has_ended = True
            os.close(self._wake_read)
            os.close(self._wake_write)
        # Whoever waits for something that was asked too late is answered all the same.
        while self._commands:
            self._commands.popleft()()

    def add(self, feed: Feed) -> None:
        """Begin to listen. The socket is connected soon after this returns."""
        self._command(lambda: self._add(feed))

    def remove(self, feed: Feed) -> None:
        """Stop listening; ``feed.closed`` is set when nothing more will be handed over."""
        self._command(lambda: self._remove(feed))

    def call(self, work: Callable[[], None]) -> None:
        """Have something done in the thread, soon."""
        self._command(work)

    def _command(self, command: Callable[[], None]) -> None:
        with self._lock:
            # The descriptor may be somebody else's by then.
            if not self._has_ended:
                self._commands.append(command)
                self._wake()
                return
        command()

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"x")
        except BlockingIOError:
            pass  # it will wake up anyway

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        finally:
            for feed in list(self._feeds.values()):
                self._remove(feed)
            self._context.term()

    def _turn(self) -> None:
        ready = dict(self._poller.poll(POLL_MS))
        if self._wake_read in ready:
            self._obey()
        due = [feed for socket, feed in self._feeds.items() if socket in ready]
        has_more = [self._guarded(feed, feed.drain) for feed in due]
        now_s = time.monotonic()
        if due and self._flood.is_on(now_s) and not any(has_more):
            time.sleep(GATHER_S)
        if now_s >= self._periodic_s:
            self._periodic_s = now_s + POLL_MS / 1000
            for feed in list(self._feeds.values()):
                self._guarded(feed, feed.listener.periodic)

    def _guarded(self, feed: Feed, work: Callable[[], bool | None]) -> bool | None:
        try:
            return work()
        except Exception:  # a bug on one kernel may not end listening to all others
            logger.exception("listening to %s failed", feed.connection.endpoint("iopub"))
            return False

    def _obey(self) -> None:
        try:
            os.read(self._wake_read, 4096)
        except BlockingIOError:
            pass
        while self._commands:
            try:
                self._commands.popleft()()
            except Exception:  # as in _guarded
                logger.exception("something asked of the listening thread failed")

    def _add(self, feed: Feed) -> None:
        if self._stopping:
            feed.closed.set()
            return
        try:
            socket = feed.open(self._context)
        except zmq.ZMQError:
            logger.exception("cannot listen to %s", feed.connection.endpoint("iopub"))
            feed.closed.set()
            return
        self._feeds[socket] = feed
        self._poller.register(socket, zmq.POLLIN)

    def _remove(self, feed: Feed) -> None:
        if feed.socket is not None and self._feeds.pop(feed.socket, None) is not None:
            self._poller.unregister(feed.socket)
            feed.socket.close()
        feed.closed.set()


class BrokerListener:
    """Routes everything to a broker and lets it clean up when it is time."""

    def __init__(self, broker: IopubBroker) -> None:
        self._broker = broker

    def received(self, messages: Sequence[KernelMessage]) -> None:
        self._broker.route_messages(messages)

    def faulty(self, faults: Sequence[Fault]) -> None:
        """The wire has counted them."""

    def periodic(self) -> None:
        self._broker.cleanup_if_due()


def start_iopub_thread(connection: ConnectionInfo, broker: IopubBroker) -> IopubThread:
    """Listen to one kernel and route what it publishes. The caller stops the thread."""
    wire = Wire(connection.key.encode(), scheme=connection.signature_scheme)
    thread = IopubThread()
    thread.start()
    thread.add(Feed(connection, wire, BrokerListener(broker)))
    return thread
