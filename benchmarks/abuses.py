"""The named abuses, by which one client tries to block the server for others."""

import json
import os
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from threading import Thread
from urllib.parse import quote

from benchmarks import rest
from benchmarks.hostile_client import (
    TOKEN,
    body_of,
    command,
    connected,
    expect,
    frame,
    ignore_refusal,
    post,
    read_to_end,
    request,
    websocket,
)
from benchmarks.local_server import TABLE, TOPIC

MESSAGES = f"/topics/{TOPIC}/messages"
ENDLESS = "exists (select 1 from generate_series(1, 1000000000000) as t(value) where value < 0)"
ACKNOWLEDGED = b'"status":"ok"'
GREEDY = "length(repeat('x', 1000000000)) > 1"


@dataclass(frozen=True)
class Assault:
    """Parameters of an abuse: port, scale (1 is the whole), and duration if it does not end by itself."""

    port: int
    scale: float
    seconds: float

    def times(self, count: int) -> range:
        return range(max(1, int(count * self.scale)))


Step = Callable[[Assault], None]


def _nothing(assault: Assault) -> None:
    """Do nothing."""


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
    """Send frames on one WebSocket, read all responses, and disconnect."""

    def run(assault: Assault) -> None:
        with websocket(assault.port) as made:
            reading = read_to_end(made)
            ignore_refusal(lambda: made.sendall(data(assault) + frame(b"", 0x88)))
            reading.join()

    return run


def _fragments(assault: Assault) -> bytes:
    return frame(b"", 0x01) + frame(b"", 0x00) * len(assault.times(600_000)) + frame(b"", 0x80)


def _subscribe_to_all(assault: Assault) -> None:
    """Wait for every ack before closing: ending the subscriptions is part of the abuse."""
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
    """Subscribe with a filter whose cost grows with the square of the payload, and publish two messages."""

    def run(assault: Assault) -> None:
        payload = {"tags": ["x" * 4] * (payload_bytes // 8), "wanted": "y"}
        text = "message.payload.tags.exists(t, t == message.payload.wanted)"
        with websocket(assault.port) as made:
            made.sendall(command(type="subscribe", topic=TOPIC, client_id="f", filter=text))
            expect(made, ACKNOWLEDGED)
            read_to_end(made)
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
                ignore_refusal(partial(made.sendall, request("GET", path, Accept=accept)))
                # Read the head of the response and nothing after it.
                expect(made, b" 200 ", b" 503 ", within_s=0.001)
            time.sleep(assault.seconds)

    return run


def _bodies(token: str | None) -> Step:
    """Send bodies that never end; the server may refuse some of them, or close their connections."""
    head = request("POST", "/topics", token=token, Content_Type="application/json", Content_Length="1000000")

    def run(assault: Assault) -> None:
        with ExitStack() as senders:
            for _ in assault.times(500):
                with suppress(OSError):
                    senders.enter_context(connected(assault.port)).sendall(head + b"{")
            time.sleep(assault.seconds)

    return run


def _wrong_keys(assault: Assault) -> None:
    """Send all requests at once, pipelined on few connections."""
    with ExitStack() as senders:
        for number in assault.times(100):
            made = senders.enter_context(connected(assault.port))
            asked = [request("GET", "/topics", token=f"wrong-key-{number}-{key:06}") for key in range(20)]
            ignore_refusal(partial(made.sendall, b"".join(asked)))
        time.sleep(assault.seconds)


def _queries(assault: Assault) -> None:
    asked = []
    with ExitStack() as senders:
        for number in assault.times(8):
            where = quote(GREEDY if number % 2 else ENDLESS)
            made = senders.enter_context(connected(assault.port))
            made.sendall(request("GET", f"/tables/{TABLE}?where={where}"))
            asked.append(made)
        time.sleep(assault.seconds)
        for made in asked:
            # 422 is for what took too much, as long as it says so.
            expect(made, b" 200 ", b" 422 ", b" 429 ", b" 503 ", within_s=0.01)


def _check_table(assault: Assault) -> None:
    """Run a query of the same kind that ends soon."""
    with connected(assault.port) as made:
        made.sendall(request("GET", f"/tables/{TABLE}?where={quote(ENDLESS)}%20and%20false"))
        expect(made, b" 200 ")


def _many_headers(assault: Assault) -> None:
    """Send heads of 60 KB of the shortest possible headers repeatedly, and read the responses."""
    head = b"GET /topics HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"a:\r\n" * 15_000 + b"\r\n"
    ends_at = time.monotonic() + assault.seconds
    while time.monotonic() < ends_at:
        with ExitStack() as senders:
            made = [senders.enter_context(connected(assault.port)) for _ in assault.times(250)]
            for each in made:
                ignore_refusal(partial(each.sendall, head))
            for each in made:
                expect(each, b" 401 ", b" 431 ")


def _costly_filters(assault: Assault) -> None:
    """Subscribe on ten connections with regular expressions that take long to compile."""
    one = r'"".matches("(?i)[\u0100-\U0010ffff]")'
    text = "||".join([one] * 40)
    with ExitStack() as senders:
        made = [senders.enter_context(websocket(assault.port)) for _ in range(10)]
        for number, each in enumerate(made):
            filters = [f"offset=={10 * number + n}||{text}" for n in assault.times(10)]
            asked = [
                command(type="subscribe", topic=TOPIC, client_id="f", filter=filter) for filter in filters
            ]
            ignore_refusal(partial(each.sendall, b"".join(asked)))
        for each in made:
            expect(each, b'"BAD_FILTER"', ACKNOWLEDGED)
        time.sleep(assault.seconds)


def _failing_filters(assault: Assault) -> None:
    """Subscribe with five filters that fail on every record after decoding all of it."""
    payload = json.dumps({"items": [{"n": n} for n in range(400)]})
    with ExitStack() as viewers:
        for number in range(5):
            made = viewers.enter_context(websocket(assault.port))
            text = f"message.payload.items.exists(i, i.name == 'item {number}')"
            made.sendall(command(type="subscribe", topic=TOPIC, client_id=f"f{number}", filter=text))
            expect(made, ACKNOWLEDGED)
            read_to_end(made)
        one = f'{{"payload":{payload}}}'.encode()
        for _ in assault.times(60):
            post(assault.port, MESSAGES, b"[" + b",".join([one] * 20) + b"]")


def _wrong_fields(assault: Assault) -> None:
    """Send bodies of 1 MB with invalid fields to calls that take a few fields."""
    fields = ",".join(f'"f{number}":1' for number in range(90_000))
    asked = body_of("/topics", f'{{"name":"x","retention":{{{fields}}}}}'.encode())
    _at_the_same_time(assault.port, asked, len(assault.times(20)), b" 413 ", b" 422 ")


def _lists(assault: Assault) -> None:
    """Publish lists of very many small messages at the same time."""
    asked = body_of(MESSAGES, b"[" + b",".join([b'{"payload":1}'] * len(assault.times(60_000))) + b"]")
    _at_the_same_time(assault.port, asked, len(assault.times(16)), b" 200 ", b" 503 ")


def _unfinished_lists(assault: Assault) -> None:
    """Send lists of the maximum number of tiny messages without their last byte."""
    text = b",".join([b'{"payload":1}'] * len(assault.times(1_000_000)))
    asked = body_of(MESSAGES, b"[" + text + b"]")[:-1]
    with ExitStack() as senders:
        made = [senders.enter_context(connected(assault.port)) for _ in range(3)]
        sending = [Thread(target=partial(ignore_refusal, partial(each.sendall, asked))) for each in made]
        for thread in sending:
            thread.start()
        for thread in sending:
            thread.join()
        time.sleep(assault.seconds)
        for each in made:
            # The accepted ones wait for the rest of their body.
            expect(each, b" 408 ", b" 503 ", within_s=0.01)


def _at_the_same_time(port: int, asked: bytes, count: int, *wanted: bytes) -> None:
    with ExitStack() as senders:
        made = [senders.enter_context(connected(port)) for _ in range(count)]
        sending = [Thread(target=partial(ignore_refusal, partial(each.sendall, asked))) for each in made]
        for thread in sending:
            thread.start()
        for each in made:
            expect(each, *wanted)


def _list_topics(assault: Assault) -> None:
    _at_the_same_time(assault.port, request("GET", "/topics"), len(assault.times(10)), b" 200 ")


def _create_many_topics(assault: Assault) -> None:
    names = [f"abuse.many.{number}" for number in assault.times(20_000)]
    for at in range(0, len(names), 1000):
        rest.create_topics(assault.port, names[at : at + 1000], token=TOKEN)


def _connections(assault: Assault) -> None:
    for _ in assault.times(2000):
        ignore_refusal(lambda: websocket(assault.port).close())


def _long_headers(assault: Assault) -> None:
    for _ in assault.times(50):
        with connected(assault.port) as made:
            ignore_refusal(partial(made.sendall, request("GET", "/health", X="x" * 60_000) * 20))


def _slow_heads(assault: Assault) -> None:
    """Open many connections that send their heads byte by byte."""
    head = request("GET", "/health", token=None, X="x" * 10_000)
    ends_at = time.monotonic() + assault.seconds
    with ExitStack() as senders:
        made = []
        for _ in assault.times(400):
            with suppress(OSError):
                made.append(senders.enter_context(connected(assault.port)))
        for byte in head:
            for each in made:
                ignore_refusal(partial(each.sendall, bytes([byte])))
            if time.monotonic() >= ends_at:
                return


ARROW = "application/vnd.apache.arrow.stream"
ABUSES = (
    Abuse("nothing", _wait, is_control=True),
    Abuse("a program that only counts", _count, is_control=True),
    Abuse("600,000 empty fragments", _frames(_fragments)),
    Abuse("300,000 pings", _frames(lambda assault: frame(b"", 0x89) * len(assault.times(300_000)))),
    Abuse(
        "200,000 messages that are not JSON",
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
    Abuse("8 table queries, endless and greedy", _queries, _check_table),
    Abuse("2,000 WebSockets that come and go", _connections),
    Abuse("1,000 requests with headers of 60 KB, pipelined", _long_headers),
    Abuse("400 heads sent byte by byte", _slow_heads),
    Abuse("250 connections with 15,000 headers each, without a key", _many_headers),
    Abuse("100 filters that take long to compile", _costly_filters),
    Abuse("1,200 records on which five filters fail", _failing_filters),
    Abuse("20 bodies of 1 MB with 90,000 wrong fields", _wrong_fields),
    Abuse("16 lists of 60,000 messages at the same time", _lists),
    Abuse("3 lists of 1,000,000 messages that never end", _unfinished_lists),
    Abuse("20,000 topics, listed ten times at the same time", _list_topics, _create_many_topics),
)


def main() -> None:
    """Run an abuse in its own process, so that it shares no interpreter with the waiting client."""
    name, port, scale, seconds = json.loads(input())
    abuse = next(abuse for abuse in ABUSES if abuse.name == name)
    assault = Assault(port, scale, seconds)
    abuse.prepare(assault)
    print("ready", flush=True)
    input()
    abuse.run(assault)
    print("done", flush=True)
    os._exit(0)  # without waiting for reader threads


if __name__ == "__main__":
    main()
