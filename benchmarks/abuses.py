"""The named abuses: what one client can try in order to keep the server from answering the others."""

import json
import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from urllib.parse import quote

from benchmarks import rest
from benchmarks.hostile_client import (
    TOKEN,
    command,
    connected,
    drained,
    frame,
    post,
    request,
    tolerantly,
    websocket,
)
from benchmarks.local_server import TABLE, TOPIC

MESSAGES = f"/topics/{TOPIC}/messages"
ENDLESS = "exists (select 1 from generate_series(1, 1000000000000) as t(value) where value < 0)"
ACKNOWLEDGED = b'"status":"ok"'
GREEDY = "length(repeat('x', 1000000000)) > 1"


@dataclass(frozen=True)
class Assault:
    """What an abuse is given: where, how much (1 is all of it), and how long it lasts if it has no end of its own."""

    port: int
    scale: float
    seconds: float

    def times(self, count: int) -> range:
        return range(max(1, int(count * self.scale)))


Step = Callable[[Assault], None]


def _nothing(assault: Assault) -> None:
    """What is there already is enough."""


@dataclass(frozen=True)
class Abuse:
    name: str
    run: Step
    prepare: Step = _nothing
    is_control: bool = False
    """Whether the server has nothing to do with it: what the machine alone makes others wait."""


def _wait(assault: Assault) -> None:
    time.sleep(assault.seconds)


def _count(assault: Assault) -> None:
    ends_at = time.monotonic() + assault.seconds
    while time.monotonic() < ends_at:
        pass


def _frames(data: Callable[[Assault], bytes]) -> Step:
    """Send frames on one WebSocket, read the answers to all of them, and leave."""

    def run(assault: Assault) -> None:
        with websocket(assault.port) as made:
            reading = drained(made)
            tolerantly(lambda: made.sendall(data(assault) + frame(b"", 0x88)))
            reading.join()

    return run


def _fragments(assault: Assault) -> bytes:
    return frame(b"", 0x01) + frame(b"", 0x00) * len(assault.times(600_000)) + frame(b"", 0x80)


def _subscribe_to_all(assault: Assault) -> None:
    """Every subscription is acknowledged before the connection ends, and leaving them is part of the abuse."""
    count = len(assault.times(100))
    with websocket(assault.port) as made:
        asked = [command(type="subscribe", topic=">", client_id=f"c{number}") for number in range(count)]
        made.sendall(b"".join(asked))
        acknowledged, end = 0, b""
        while acknowledged < count and (data := made.recv(1 << 20)):
            data = end + data
            acknowledged += data.count(ACKNOWLEDGED)
            end = data[-len(ACKNOWLEDGED) + 1 :]


def _create_topics(assault: Assault) -> None:
    rest.create_topics(assault.port, [f"abuse.{number}" for number in assault.times(1500)], token=TOKEN)


def _filter(payload_bytes: int) -> Step:
    """A filter whose cost grows with the square of the payload, and two messages for it."""

    def run(assault: Assault) -> None:
        payload = {"tags": ["x" * 4] * (payload_bytes // 8), "wanted": "y"}
        text = "message.payload.tags.exists(t, t == message.payload.wanted)"
        with websocket(assault.port) as made:
            drained(made)
            made.sendall(command(type="subscribe", topic=TOPIC, client_id="f", filter=text))
            time.sleep(0.2)
            post(assault.port, MESSAGES, json.dumps([{"payload": payload}] * 2).encode())
            time.sleep(assault.seconds)

    return run


def _publish_list(assault: Assault) -> None:
    one = b'{"payload":"' + b"x" * 1000 + b'"},'
    post(assault.port, MESSAGES, b"[" + one * len(assault.times(196_000)) + one[:-1] + b"]")


def _fill(assault: Assault) -> None:
    one = b'{"payload":"' + b"x" * 10_000 + b'"},'
    post(assault.port, MESSAGES, b"[" + one * 2000 + one[:-1] + b"]")


def _stalled(path: str, accept: str) -> Step:
    def run(assault: Assault) -> None:
        with ExitStack() as readers:
            for _ in assault.times(40):
                made = readers.enter_context(connected(assault.port, receive_bytes=4096))
                tolerantly(partial(made.sendall, request("GET", path, Accept=accept)))
            time.sleep(assault.seconds)

    return run


def _bodies(token: str | None) -> Step:
    """Bodies that never end; the server may refuse some of them, or cut them."""
    head = request("POST", "/topics", token=token, Content_Type="application/json", Content_Length="1000000")

    def run(assault: Assault) -> None:
        with ExitStack() as senders:
            for _ in assault.times(500):
                with suppress(OSError):
                    senders.enter_context(connected(assault.port)).sendall(head + b"{")
            time.sleep(assault.seconds)

    return run


def _wrong_keys(assault: Assault) -> None:
    """All requests at once, on few connections; the answers are not waited for one by one."""
    with ExitStack() as senders:
        for number in assault.times(100):
            made = senders.enter_context(connected(assault.port))
            asked = [request("GET", "/topics", token=f"wrong-key-{number}-{key:06}") for key in range(20)]
            tolerantly(partial(made.sendall, b"".join(asked)))
        time.sleep(assault.seconds)


def _queries(assault: Assault) -> None:
    with ExitStack() as senders:
        for number in assault.times(8):
            where = quote(GREEDY if number % 2 else ENDLESS)
            made = senders.enter_context(connected(assault.port))
            made.sendall(request("GET", f"/tables/{TABLE}?where={where}"))
        time.sleep(assault.seconds)


def _connections(assault: Assault) -> None:
    for _ in assault.times(2000):
        tolerantly(lambda: websocket(assault.port).close())


def _long_headers(assault: Assault) -> None:
    for _ in assault.times(50):
        with connected(assault.port) as made:
            tolerantly(partial(made.sendall, request("GET", "/health", X="x" * 60_000) * 20))


def _slow_heads(assault: Assault) -> None:
    """Many connections, each of which sends its head byte by byte."""
    head = request("GET", "/health", token=None, X="x" * 10_000)
    ends_at = time.monotonic() + assault.seconds
    with ExitStack() as senders:
        made = []
        for _ in assault.times(400):
            with suppress(OSError):
                made.append(senders.enter_context(connected(assault.port)))
        for byte in head:
            for each in made:
                tolerantly(partial(each.sendall, bytes([byte])))
            if time.monotonic() >= ends_at:
                return


ARROW = "application/vnd.apache.arrow.stream"
ABUSES = (
    Abuse("nothing", _wait, is_control=True),
    Abuse("a program that counts and asks for nothing", _count, is_control=True),
    Abuse("600,000 empty fragments", _frames(_fragments)),
    Abuse("300,000 pings", _frames(lambda assault: frame(b"", 0x89) * len(assault.times(300_000)))),
    Abuse(
        "200,000 messages that are no JSON",
        _frames(lambda assault: frame(b"x") * len(assault.times(200_000))),
    ),
    Abuse("100 subscriptions on `>` over 1,500 topics", _subscribe_to_all, _create_topics),
    Abuse("a filter that squares a message of 30 KB", _filter(30_000)),
    Abuse("a filter that squares a message of 90 KB", _filter(90_000)),
    Abuse("a filter that squares a message of 1 MB", _filter(1_000_000)),
    Abuse("one list of 190 MiB", _publish_list),
    Abuse("40 event streams that never read", _stalled(f"/topics/{TOPIC}/events?from=0", "*/*"), _fill),
    Abuse("40 JSON readers that never read", _stalled(f"{MESSAGES}?limit=100000", "*/*"), _fill),
    Abuse("40 NDJSON readers that never read", _stalled(MESSAGES, "application/x-ndjson"), _fill),
    Abuse("40 Arrow readers that never read", _stalled(MESSAGES, ARROW), _fill),
    Abuse("500 bodies that never end, without a key", _bodies(None)),
    Abuse("500 bodies that never end, with a key", _bodies(TOKEN)),
    Abuse("2,000 wrong keys in a burst", _wrong_keys),
    Abuse("8 table queries, endless and greedy", _queries),
    Abuse("2,000 WebSockets that come and go", _connections),
    Abuse("1,000 requests with headers of 60 KB, pipelined", _long_headers),
    Abuse("400 heads that come byte by byte", _slow_heads),
)


def main() -> None:
    """In a process of its own, so that the abuser and the one who waits do not share an interpreter."""
    name, port, scale, seconds = json.loads(input())
    abuse = next(abuse for abuse in ABUSES if abuse.name == name)
    assault = Assault(port, scale, seconds)
    abuse.prepare(assault)
    print("ready", flush=True)
    input()
    abuse.run(assault)
    print("done", flush=True)
    os._exit(0)  # not waiting for threads that read


if __name__ == "__main__":
    main()
