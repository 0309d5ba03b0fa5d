"""A real server in a thread of the test's own process, and plain ways to talk to it."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
import uuid
from collections.abc import Callable
from typing import Any

import httpx
import uvloop
from websockets.asyncio.client import ClientConnection, connect

from himalia.server.context import ServerContext
from himalia.server.run import Server, listen, serve_on
from himalia.settings import Settings
from himalia.topics import AUDIT_TOPIC

DEADLINE_S = 20.0
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Trusts nobody. Made once: by itself every httpx client would load all the authorities of the world."""


class RunningServer:
    """A server that is running; ``stop`` ends it as SIGTERM would."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.context = ServerContext(settings)
        self._listener = listen(settings.host, settings.port)
        self._listening = threading.Event()
        self._server: Server | None = None
        self._failure: BaseException | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._listening.wait(DEADLINE_S)
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        async def main() -> None:
            self.loop = asyncio.get_running_loop()
            await serve_on(self.context, self._listener, self._on_listening)

        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(main())
        except BaseException as error:
            self._failure = error
        finally:
            self._listening.set()
            self._listener.close()

    def _on_listening(self, server: Server) -> None:
        self._server = server
        self._listening.set()

    @property
    def url(self) -> str:
        assert self._server is not None
        return self._server.url

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    @property
    def ws_url(self) -> str:
        return self.url.replace("http", "ws", 1) + "/ws"

    @property
    def token(self) -> str | None:
        return self.context.token

    def http(self, **options: Any) -> httpx.Client:
        options.setdefault("verify", NO_TLS)
        return httpx.Client(base_url=self.url, timeout=DEADLINE_S, **options)

    def create(self, *topics: str, **retention: Any) -> None:
        with self.http(headers=self.headers) as http:
            for topic in topics:
                body = {"name": topic, "retention": retention} if retention else {"name": topic}
                http.post("/topics", json=body).raise_for_status()

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}

    def connect(self, **options: Any) -> connect:
        options.setdefault("additional_headers", self.headers)
        return connect(self.ws_url, compression=None, max_size=None, **options)

    def raw_socket(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=DEADLINE_S)

    def on_loop(self, work: Callable[[], Any]) -> Any:
        """Run a function on the server's own event loop and return what it returns."""
        assert self.loop is not None

        async def call() -> Any:
            return work()

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(DEADLINE_S)

    def wait_for_audit(self) -> None:
        """Wait until all that was recorded so far is in the audit trail, which is appended to in the background."""
        assert self.loop is not None
        asyncio.run_coroutine_threadsafe(self.context.audit._idle.wait(), self.loop).result(DEADLINE_S)

    def audit_trail(self, *events: str) -> list[dict[str, Any]]:
        """What the audit trail has so far of these events, or of all: their payloads, without the times."""
        assert self.loop is not None
        self.wait_for_audit()
        reading = self.context.log.read(AUDIT_TOPIC, 0, limit=100_000)
        chunk = asyncio.run_coroutine_threadsafe(reading, self.loop).result(DEADLINE_S)
        payloads = [json.loads(record.payload) for record in chunk.records]
        for payload in payloads:
            del payload["at"]
        return [payload for payload in payloads if not events or payload["event"] in events]

    def stop(self) -> None:
        if self._server is not None:
            self._server.should_exit = True
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the server did not stop"


def start_server(**settings: Any) -> RunningServer:
    return RunningServer(Settings(**{"port": 0, "log_level": "warning", **settings}))


async def say(ws: ClientConnection, **message: Any) -> None:
    """Send one client message; ``from_`` stands for ``from``."""
    if "from_" in message:
        message["from"] = message.pop("from_")
    await ws.send(json.dumps(message))


async def hear(ws: ClientConnection) -> dict[str, Any]:
    """The next message of the server."""
    return json.loads(await asyncio.wait_for(ws.recv(), DEADLINE_S))  # type: ignore[no-any-return]


async def ask(ws: ClientConnection, **message: Any) -> dict[str, Any]:
    """Send one message and return the answer to it, skipping what else comes meanwhile."""
    request_id = message.setdefault("request_id", str(uuid.uuid4()))
    await say(ws, **message)
    while True:
        answer = await hear(ws)
        if answer.get("request_id") == request_id:
            return answer


async def hear_events(ws: ClientConnection, count: int) -> list[dict[str, Any]]:
    """The next ``count`` events, skipping everything else."""
    events = []
    while len(events) < count:
        message = await hear(ws)
        if message["type"] == "event":
            events.append(message)
    return events


def message(payload: Any = None, **fields: Any) -> dict[str, Any]:
    return {"id": str(uuid.uuid4()), "payload": payload, **fields}


async def publish(ws: ClientConnection, topic: str, *payloads: Any) -> list[int]:
    """Publish and wait for the acknowledgements; returns the offsets."""
    offsets = []
    for payload in payloads:
        answer = await ask(ws, type="publish", topic=topic, message=message(payload))
        assert answer["type"] == "ack", answer
        offsets.append(answer["offset"])
    return offsets
