"""Clients that come and go, one thread per kind, until stopped."""

import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPException

from benchmarks.hostile_client import TOKEN, command, connected, request, websocket
from benchmarks.local_server import TABLE, TOPIC

PAUSE_S = 0.01
ANSWER_MAX_S = 30.0
SUBSCRIPTIONS = 5
FORMS = ("application/json", "application/x-ndjson", "application/vnd.apache.arrow.stream")


class Churn:
    """Clients that use one server in every way that needs cleaning up; counts the operations."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._ended = threading.Event()
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()

    @contextmanager
    def running(self) -> Iterator[None]:
        kinds = (
            self._subscribe,
            self._make_topics,
            self._follow_events,
            self._publish,
            self._sign_in,
            self._try_wrong_key,
            self._read,
            self._publish_list,
        )
        threads = [threading.Thread(target=self._repeat, args=(kind,)) for kind in kinds]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in threads:
                thread.join()

    def _repeat(self, step: Callable[[int], None]) -> None:
        number = 0
        while not self._ended.wait(PAUSE_S):
            number += 1
            try:
                step(number)
            except (OSError, HTTPException) as error:
                self.failed[f"{step.__name__.lstrip('_')}: {error or type(error).__name__}"] += 1

    def _subscribe(self, number: int) -> None:
        """Connect, subscribe in every way, and disconnect without unsubscribing."""
        with websocket(self._port) as made:
            patterns = (TOPIC, "churn.>", ">", "churn.*", TOPIC)
            for each in range(SUBSCRIPTIONS):
                more = (
                    {"filter": f"offset >= {number % 7}", "last_n": 10} if each == SUBSCRIPTIONS - 1 else {}
                )
                made.sendall(
                    command(type="subscribe", topic=patterns[each], client_id=f"c{number}-{each}", **more)
                )
            made.sendall(command(type="ping", request_id="last"))
            _read_until(made.recv, b'"pong"')
        self.done["sockets"] += 1
        self.done["subscriptions"] += SUBSCRIPTIONS

    def _make_topics(self, number: int) -> None:
        name = f"churn.{number}"
        self._ask("POST", "/topics", {"name": name})
        self._ask("POST", f"/topics/{name}/messages", {"payload": number})
        self._ask("DELETE", f"/topics/{name}")
        self.done["topics"] += 1

    def _follow_events(self, number: int) -> None:
        with connected(self._port) as made:
            made.sendall(request("GET", f"/topics/{TOPIC}/events?last=3", Accept="text/event-stream"))
            made.recv(4096)
        self.done["event streams"] += 1

    def _publish(self, number: int) -> None:
        for _ in range(10):
            self._ask("POST", f"/topics/{TOPIC}/messages", {"id": str(uuid.uuid4()), "payload": number})
        self.done["publishes"] += 10

    def _sign_in(self, number: int) -> None:
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_MAX_S)) as connection:
            connection.request("POST", "/session", headers=_key(TOKEN))
            answer = connection.getresponse()
            answer.read()
            cookie = (answer.headers.get("Set-Cookie") or "").partition(";")[0]
            connection.request("DELETE", "/session", headers={"Cookie": cookie})
            connection.getresponse().read()
        self.done["sign-ins"] += 1

    def _try_wrong_key(self, number: int) -> None:
        self._ask("GET", "/topics", token=f"wrong-key-{number:08}")
        self.done["wrong keys"] += 1

    def _read(self, number: int) -> None:
        self._ask("GET", f"/topics/{TOPIC}/messages?last=100", accept=FORMS[number % len(FORMS)])
        self._ask("GET", "/topics")
        self._ask("GET", f"/tables/{TABLE}?limit=10")
        self.done["reads"] += 3

    def _publish_list(self, number: int) -> None:
        """Publish a large list, rarely."""
        self._ask("POST", f"/topics/{TOPIC}/messages", [{"payload": "x" * 1000}] * 500)
        self.done["lists of 500"] += 1
        self._ended.wait(2.0)

    def _ask(
        self, method: str, path: str, body: object = None, *, token: str = TOKEN, accept: str = "*/*"
    ) -> None:
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_MAX_S)) as connection:
            headers = _key(token) | {"Accept": accept, "Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            connection.getresponse().read()


def _key(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _read_until(receive: Callable[[int], bytes], wanted: bytes) -> None:
    end = b""
    deadline = time.monotonic() + ANSWER_MAX_S
    while wanted not in end:
        data = receive(1 << 16)
        if not data or time.monotonic() > deadline:
            raise ConnectionError("the socket was closed")
        end = end[-len(wanted) :] + data
