"""Reading over REST: where a read begins and ends, in pages, as JSON, NDJSON and Arrow."""

from __future__ import annotations

import asyncio
import io
import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from himalia.log import Batch, open_log
from himalia.record import Draft, format_ts, now_us
from tests.server.raw_clients import RawWebSocket, Wire, until
from tests.server.rest.calls import ARROW, JSON, NDJSON, error_of, payloads, post
from tests.server.server_process import ServerProcess
from tests.servers import RunningServer


@pytest.fixture
def server(emptied: RunningServer) -> RunningServer:
    return emptied


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx.Client]:
    server.create("orders")
    with server.http() as http:
        yield http


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({}, range(10)),
        ({"from": 7}, [7, 8, 9]),
        ({"from": 10}, []),
        ({"from": 10**15}, []),
        ({"last": 3}, [7, 8, 9]),
        ({"last": 0}, []),
        ({"last": 100}, range(10)),
        ({"limit": 2}, [0, 1]),
        ({"from": 8, "limit": 5}, [8, 9]),
        ({"last": 4, "limit": 2}, [6, 7]),
        ({"since": "1970-01-01"}, range(10)),
        ({"since": 0}, range(10)),
        ({"since": "2999-01-01T00:00:00Z"}, []),
        ({"since": "0", "limit": 1}, [0]),
    ],
    ids=repr,
)
def test_a_read_begins_and_ends_where_it_is_told(
    http: httpx.Client, params: dict[str, Any], expected: Any
) -> None:
    """By offset, time or count, and no more than the limit, in every form alike."""
    post(http, [{"payload": i} for i in range(10)])
    assert payloads(http, **params) == list(expected)
    lines = http.get("/topics/orders/messages", params=params, headers={"Accept": NDJSON}).text
    assert [json.loads(line)["offset"] for line in lines.splitlines()] == list(expected)
    table = pa.ipc.open_stream(
        http.get("/topics/orders/messages", params=params, headers={"Accept": ARROW}).content
    ).read_all()
    assert table["offset"].to_pylist() == list(expected)


def test_since_finds_the_first_record_of_a_time(http: httpx.Client) -> None:
    """Everything published at that time or later, nothing before."""
    post(http, {"payload": "before"})
    moment = now_us()
    until(lambda: now_us() > moment)
    post(http, {"payload": "after"})
    assert payloads(http, since=format_ts(moment)) == ["after"]
    assert payloads(http, since=moment / 1_000_000 - 60) == ["before", "after"]


@pytest.mark.parametrize(
    "params",
    [
        {"from": -1},
        {"from": "x"},
        {"from": 1.5},
        {"from": 1 << 63},
        {"last": -1},
        {"last": 1_000_001},
        {"limit": 0},
        {"limit": -1},
        {"limit": "x"},
        {"since": "yesterday"},
        {"since": ""},
        {"since": -1},
        {"since": "nan"},
        {"since": "1e300"},
        {"since": "x" * 5000},
        {"from": 1, "last": 1},
        {"from": 1, "since": 0},
        {"last": 1, "since": 0},
    ],
    ids=lambda params: repr(params)[:40],
)
def test_a_range_that_cannot_be_is_422(http: httpx.Client, params: dict[str, Any]) -> None:
    """What to read is checked before anything is read."""
    assert error_of(http.get("/topics/orders/messages", params=params)) == (422, "BAD_REQUEST")


def test_a_read_of_another_epoch_is_refused(http: httpx.Client) -> None:
    """409, rather than other records under the same offsets."""
    epoch = post(http, {"payload": 1}).json()["epoch"]
    assert payloads(http, epoch=epoch) == [1]
    answer = http.get("/topics/orders/messages", params={"epoch": "other"})
    assert error_of(answer) == (409, "EPOCH_CHANGED")


def test_an_offset_beyond_the_end_reads_nothing_and_stays(http: httpx.Client) -> None:
    """A poller that is ahead of the log gets no earlier record, now or by following ``next``."""
    post(http, [{"payload": i} for i in range(2)])
    at = 4
    for expected in ([], [], [4, 5]):
        page = http.get("/topics/orders/messages", params={"from": at}).json()
        assert [one["offset"] for one in page["messages"]] == expected
        at = page["next"]
        post(http, [{"payload": 0}, {"payload": 1}])
    assert at == 6
    assert payloads(http, **{"from": 999_999, "limit": 1}) == []


def test_json_is_read_in_pages(http: httpx.Client) -> None:
    """1000 records unless more are asked for; ``next`` is where to go on, ``end`` where the topic ends."""
    post(http, [{"payload": i} for i in range(2500)])
    seen, at = [], 0
    while True:
        page = http.get("/topics/orders/messages", params={"from": at}).json()
        seen += [one["message"]["payload"] for one in page["messages"]]
        assert page["end"] == 2500
        at = page["next"]
        if at == page["end"]:
            break
    assert seen == list(range(2500))
    assert len(payloads(http, limit=2500)) == 2500


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, JSON),
        ("*/*", JSON),
        ("application/*", JSON),
        (JSON, JSON),
        (NDJSON, NDJSON),
        (ARROW, ARROW),
        (f"{NDJSON};q=0.5, {ARROW}", ARROW),
        (f"text/html, {NDJSON};q=0.9, */*;q=0.1", NDJSON),
        (f"{JSON};q=0, {NDJSON}", NDJSON),
        ("APPLICATION/X-NDJSON", NDJSON),
        (f"{JSON};charset=utf-8;q=x, {NDJSON};q=0.1", NDJSON),
    ],
)
def test_the_form_is_chosen_by_accept(http: httpx.Client, accept: str | None, expected: str) -> None:
    """The best that the client takes and the server offers; JSON if it does not matter."""
    post(http, {"payload": 1})
    headers = {} if accept is None else {"Accept": accept}
    answer = http.get("/topics/orders/messages", headers=headers)
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, expected)


@pytest.mark.parametrize("accept", ["text/html", "image/*", "application/json;q=0", "x", ";"])
def test_a_form_that_is_not_offered_is_406(http: httpx.Client, accept: str) -> None:
    """The answer names what is offered."""
    answer = http.get("/topics/orders/messages", headers={"Accept": accept})
    assert error_of(answer) == (406, "NOT_ACCEPTABLE")
    assert NDJSON in answer.json()["error"]["message"]


def test_every_form_has_the_same_records(http: httpx.Client) -> None:
    """JSON, NDJSON and Arrow differ in form alone."""
    post(http, [{"payload": {"i": i}, "headers": {"n": str(i)}} for i in range(100)])
    as_json = http.get("/topics/orders/messages").json()["messages"]
    text = http.get("/topics/orders/messages", headers={"Accept": NDJSON}).text
    assert [json.loads(line) for line in text.splitlines()] == as_json
    content = http.get("/topics/orders/messages", headers={"Accept": ARROW}).content
    table = pa.ipc.open_stream(io.BytesIO(content)).read_all()
    assert [str(field.type) for field in table.schema] == [
        "string",
        "int64",
        "timestamp[us, tz=UTC]",
        "string",
        "map<string, string>",
        "string",
    ]
    rows = [
        {
            "offset": row["offset"],
            "ts": row["ts"].strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "message": {
                "id": row["id"],
                "payload": json.loads(row["payload"]),
                "headers": dict(row["headers"]),
            },
        }
        for row in table.to_pylist()
    ]
    assert rows == as_json


def test_a_time_never_decreases_and_is_the_same_live_and_replayed(
    server: RunningServer, http: httpx.Client
) -> None:
    """The time of a record is the record's, however it is read."""
    with RawWebSocket(server) as raw:
        raw.ask(type="subscribe", topic="orders", client_id="v")
        for i in range(5):
            post(http, {"payload": i})
        live = [raw.hear() for _ in range(5)]
    stored = http.get("/topics/orders/messages").json()["messages"]
    assert [one["ts"] for one in stored] == [one["ts"] for one in live] == sorted(one["ts"] for one in stored)
    assert [one["message"] for one in stored] == [one["message"] for one in live]


def test_reading_while_the_topic_is_deleted_ends(server: RunningServer, http: httpx.Client) -> None:
    """A read whose topic goes away ends with what was read, and the answer is whole."""
    line = json.dumps({"payload": "x" * 10_000}) + "\n"
    for accept in (JSON, NDJSON):
        for _ in range(3):
            post(http, line * 1000)
        url, headers = "/topics/orders/messages?limit=3000", {"Accept": accept}
        with server.http() as slow, slow.stream("GET", url, headers=headers) as answer:
            parts = answer.iter_bytes(10_000)
            begin = next(parts)
            http.delete("/topics/orders").raise_for_status()
            text = b"".join([begin, *parts]).decode()
        if accept == JSON:
            found = json.loads(text)
            assert found["next"] == len(found["messages"])
        else:
            offsets = [json.loads(one)["offset"] for one in text.splitlines()]
            assert offsets == list(range(len(offsets)))
        http.post("/topics", json={"name": "orders"}).raise_for_status()


async def fill(url: str, count: int) -> None:
    """Write a log quickly, without a server."""
    log = open_log(url)
    await log.open()
    await log.create("orders")
    for first in range(0, count, 10_000):
        offsets = range(first, first + 10_000)
        drafts = [Draft(str(uuid.UUID(int=i)), b'"%06d%b"' % (i, b"x" * 100)) for i in offsets]
        await log.append(Batch("orders", drafts))
    await log.close()


@pytest.mark.slow
def test_reading_200_000_records_does_not_sit_in_memory(tmp_path: Path) -> None:
    """A read is a stream: the server holds a few chunks of it, however long it is and however slow the reader."""
    url = f"sqlite://{tmp_path}/log.db"
    asyncio.run(fill(url, 200_000))
    with ServerProcess(tmp_path, "--no-auth", log=url) as server, server.http() as http:
        for accept in (NDJSON, ARROW):  # once before measuring: code and caches are loaded by the first read
            http.get("/topics/orders/messages?limit=20000", headers={"Accept": accept}).raise_for_status()
        before = server.memory_bytes()
        most = size = 0
        for accept, limit in ((NDJSON, ""), (ARROW, ""), (JSON, "?limit=200000")):
            with http.stream("GET", f"/topics/orders/messages{limit}", headers={"Accept": accept}) as answer:
                for part in answer.iter_bytes(1 << 20):
                    size += len(part)
                    most = max(most, server.memory_bytes())
        assert size > 3 * 200_000 * 150
        # Each of these answers is some 40 MB.
        assert most - before < 20 * (1 << 20)


def test_answers_are_quick_while_a_long_read_is_under_way(server: RunningServer, http: httpx.Client) -> None:
    """A reader that does not take its answer holds nobody else up."""
    line = json.dumps({"payload": "x" * 10_000}) + "\n"
    post(http, line * 2000)
    with Wire(server.port, receive_bytes=4096) as wire:
        wire.send(b"GET /topics/orders/messages?limit=2000 HTTP/1.1\r\nHost: localhost\r\n\r\n")
        began = time.monotonic()
        for _ in range(20):
            assert http.get("/health").status_code == 200
        assert time.monotonic() - began < 5
