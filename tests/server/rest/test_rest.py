"""Every call of the REST interface: what it answers, and how it fails."""

from __future__ import annotations

import asyncio
import io
import json
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pyarrow as pa
import pytest

from himalia import __version__
from himalia.errors import ErrorCode
from himalia.log import Batch, open_log
from himalia.protocol import PROTOCOL_VERSION, ServerMessage, decode_client_message
from himalia.record import Draft, format_ts, now_us
from tests.server.raw_clients import RawWebSocket, Wire, until
from tests.server.server_process import ServerProcess
from tests.servers import RunningServer

Serve = Callable[..., RunningServer]
JSON, NDJSON = "application/json", "application/x-ndjson"
ARROW = "application/vnd.apache.arrow.stream"


@pytest.fixture
def server(emptied: RunningServer) -> RunningServer:
    return emptied


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx.Client]:
    server.create("orders")
    with server.http() as http:
        yield http


def error_of(answer: httpx.Response) -> tuple[int, str]:
    body = answer.json()
    assert list(body) == ["error"]
    assert set(body["error"]) == {"code", "message"}
    assert 0 < len(body["error"]["message"]) <= 1000
    return answer.status_code, body["error"]["code"]


def post(http: httpx.Client, body: Any, **params: Any) -> httpx.Response:
    """Publish: text and bytes as lines, anything else as JSON."""
    if isinstance(body, str | bytes):
        return http.post(
            "/topics/orders/messages", content=body, headers={"Content-Type": NDJSON}, params=params
        )
    return http.post("/topics/orders/messages", json=body, params=params)


def payloads(http: httpx.Client, **params: Any) -> list[Any]:
    answer = http.get("/topics/orders/messages", params=params)
    assert answer.status_code == 200, answer.text
    return [one["message"]["payload"] for one in answer.json()["messages"]]


# Topics


def test_creating_a_topic(http: httpx.Client) -> None:
    """201 with the name; a second time is 409."""
    answer = http.post("/topics", json={"name": "news.today"})
    assert (answer.status_code, answer.json()) == (201, {"status": "created", "topic": "news.today"})
    assert error_of(http.post("/topics", json={"name": "news.today"})) == (409, "TOPIC_EXISTS")


@pytest.mark.parametrize(
    "body",
    [
        {"name": ""},
        {"name": "a b"},
        {"name": "a..b"},
        {"name": "a.*"},
        {"name": ">"},
        {"name": "ä"},
        {"name": "x" * 256},
        {"name": 1},
        {"name": None},
        {},
        [],
        "orders",
        {"name": "a", "colour": "red"},
        {"name": "a", "retention": 1},
        {"name": "a", "retention": {"age_s": -1}},
        {"name": "a", "retention": {"bytes": -1}},
        {"name": "a", "retention": {"count": 1.5}},
        {"name": "a", "retention": {"count": 1 << 63}},
        {"name": "a", "retention": {"colour": 1}},
    ],
    ids=repr,
)
def test_a_topic_that_cannot_be_is_422(http: httpx.Client, body: Any) -> None:
    """Names and retention are checked before anything is made."""
    assert error_of(http.post("/topics", json=body)) == (422, "BAD_REQUEST")
    assert len(http.get("/topics").json()["topics"]) == 1


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"name":', b"\xff", b'{"name":"\xff"}', b"[" * 50_000, b'{"name":"a"}x', b"NaN"],
    ids=lambda body: repr(body[:20]),
)
def test_a_body_that_is_not_json_is_422(http: httpx.Client, body: bytes) -> None:
    """Whatever is wrong with a body has the same status and code."""
    headers = {"Content-Type": JSON}
    assert error_of(http.post("/topics", content=body, headers=headers)) == (422, "BAD_REQUEST")
    answer = http.post("/topics/orders/messages", content=body, headers=headers)
    assert error_of(answer) == (422, "BAD_REQUEST")


def test_deleting_a_topic(server: RunningServer, http: httpx.Client) -> None:
    """200 with the name, its subscribers are told and unsubscribed; a second time is 404."""
    with RawWebSocket(server) as raw:
        raw.ask(type="subscribe", topic="orders", client_id="v")
        answer = http.delete("/topics/orders")
        assert (answer.status_code, answer.json()) == (200, {"status": "deleted", "topic": "orders"})
        told = raw.hear()
        assert (told["type"], told["msg"], told["topic"]) == ("info", "topic_deleted", "orders")
    assert error_of(http.delete("/topics/orders")) == (404, "TOPIC_NOT_FOUND")
    assert error_of(http.get("/topics/orders/messages")) == (404, "TOPIC_NOT_FOUND")
    assert error_of(post(http, {"payload": 1})) == (404, "TOPIC_NOT_FOUND")
    assert error_of(post(http, '{"payload": 1}')) == (404, "TOPIC_NOT_FOUND")


def test_listing_topics(server: RunningServer, http: httpx.Client) -> None:
    """Every topic by name, with its subscribers, its range and its retention."""
    server.create("news", count=5, age_s=60, bytes=1000)
    post(http, {"payload": "x"})
    with RawWebSocket(server) as raw:
        raw.ask(type="subscribe", topic="orders", client_id="v")
        news, orders = http.get("/topics").json()["topics"]
    assert (news["name"], news["subscribers"], news["retention"]) == (
        "news",
        0,
        {"age_s": 60.0, "bytes": 1000, "count": 5},
    )
    assert {name: orders[name] for name in ("name", "subscribers", "messages", "first", "end")} == {
        "name": "orders",
        "subscribers": 1,
        "messages": 1,
        "first": 0,
        "end": 1,
    }
    assert orders["bytes"] > 0 and len(orders["epoch"]) == 16 and orders["created"].endswith("Z")


def test_a_topic_that_was_made_again_has_another_epoch(http: httpx.Client) -> None:
    """The same name is not the same topic: offsets begin again, under another epoch."""
    epochs = []
    for _ in range(2):
        answer = post(http, {"payload": 1}).json()
        assert answer["offset"] == 0
        epochs.append(answer["epoch"])
        http.delete("/topics/orders").raise_for_status()
        http.post("/topics", json={"name": "orders"}).raise_for_status()
    assert epochs[0] != epochs[1]


def test_retention_of_a_topic_by_count(serve: Serve) -> None:
    """A topic keeps as much as it was told to, and reads say where it begins now."""
    server = serve(auth=False, log="memory://")
    server.create("orders", count=3)
    with server.http() as http:
        post(http, [{"payload": i} for i in range(10)])
        answer = http.get("/topics/orders/messages").json()
        assert [one["offset"] for one in answer["messages"]] == [7, 8, 9]
        assert (answer["next"], answer["end"]) == (10, 10)


def test_retention_of_a_topic_in_the_durable_log(server: RunningServer, http: httpx.Client) -> None:
    """Retention works by itself, a little later; what is gone is not read as something else."""
    server.create("short", count=3)
    for i in range(10):
        http.post("/topics/short/messages", json={"payload": i}).raise_for_status()

    def first() -> int:
        found = {one["name"]: one for one in http.get("/topics").json()["topics"]}
        return int(found["short"]["first"])

    until(lambda: first() == 7)
    found = http.get("/topics/short/messages", params={"from": 2}).json()["messages"]
    assert [one["offset"] for one in found] == [7, 8, 9]


# Publishing


def test_publishing_one_message(http: httpx.Client) -> None:
    """The answer has the offset and the epoch; the record has the payload, an id and the publisher's stamp."""
    answer = post(http, {"payload": {"sku": "A"}, "headers": {"source": "shop"}})
    body = answer.json()
    assert answer.status_code == 200
    assert {name: body[name] for name in ("topic", "offset", "count", "duplicates", "first", "last")} == {
        "topic": "orders",
        "offset": 0,
        "count": 1,
        "duplicates": 0,
        "first": 0,
        "last": 0,
    }
    (record,) = http.get("/topics/orders/messages").json()["messages"]
    assert record["message"]["payload"] == {"sku": "A"}
    assert record["message"]["headers"] == {"source": "shop", "publisher": "anonymous", "caller": "anonymous"}
    assert uuid.UUID(record["message"]["id"]).version == 4


@pytest.mark.parametrize(
    "payload",
    [None, True, 0, -1.5e300, "", "ü\u2028\0", [], {}, [[[]]], {"a": None}, 10**40, "x" * 100_000],
    ids=lambda payload: repr(payload)[:20],
)
def test_any_json_is_a_payload(http: httpx.Client, payload: Any) -> None:
    """What was published is what is read."""
    assert post(http, {"payload": payload}).status_code == 200
    assert payloads(http) == [payload]


def test_a_payload_keeps_its_bytes(http: httpx.Client) -> None:
    """A payload is never encoded again: numbers keep their digits, keys their order and repeats."""
    text = '{"payload":{"b":1.10,"a":1e2,"a":12345678901234567890.5}}'
    http.post("/topics/orders/messages", content=text, headers={"Content-Type": JSON}).raise_for_status()
    assert (
        '"payload":{"b":1.10,"a":1e2,"a":12345678901234567890.5}' in http.get("/topics/orders/messages").text
    )
    long = "7" * 5_001  # more digits than Python itself would read
    answer = http.post(
        "/topics/orders/messages", content=f'{{"payload":{long}}}', headers={"Content-Type": JSON}
    )
    assert answer.status_code == 200
    assert f'"payload":{long},' in http.get("/topics/orders/messages", headers={"Accept": NDJSON}).text


def test_publishing_a_list(http: httpx.Client) -> None:
    """Offsets for each, in order; a list of one is still a list."""
    answer = post(http, [{"payload": i} for i in range(3)]).json()
    assert (answer["offsets"], answer["count"], answer["first"], answer["last"]) == ([0, 1, 2], 3, 0, 2)
    assert "offset" not in answer
    assert post(http, [{"payload": 3}]).json()["offsets"] == [3]


@pytest.mark.parametrize(
    "bad",
    [
        {},
        {"payload": 1, "id": "x"},
        {"payload": 1, "headers": {"a": 1}},
        1,
        None,
        [],
        {"payload": 1, "id": 5},
    ],
    ids=repr,
)
def test_a_list_is_stored_whole_or_not_at_all(http: httpx.Client, bad: Any) -> None:
    """One wrong message in a list and nothing of it is stored."""
    assert error_of(post(http, [{"payload": 1}, bad, {"payload": 2}])) == (422, "BAD_REQUEST")
    assert payloads(http) == []


def test_an_empty_body_is_refused(http: httpx.Client) -> None:
    """Nothing is not a message."""
    for body in ([], "", "\n\n", "  \n"):
        assert error_of(post(http, body)) == (422, "BAD_REQUEST")


def test_publishing_lines(http: httpx.Client) -> None:
    """NDJSON: a message a line, empty lines and Windows line ends are fine, the last needs no line end."""
    answer = post(http, '{"payload":0}\r\n\n  \n{"payload":1}\n{"payload":2}').json()
    assert (answer["count"], answer["first"], answer["last"]) == (3, 0, 2)
    assert "offsets" not in answer
    assert payloads(http) == [0, 1, 2]


@pytest.mark.parametrize(
    "media_type", [NDJSON, "application/ndjson", "application/jsonl", f"{NDJSON}; charset=utf-8"]
)
def test_every_name_of_ndjson_is_understood(http: httpx.Client, media_type: str) -> None:
    """There is no official name, so the usual ones will do."""
    answer = http.post(
        "/topics/orders/messages",
        content='{"payload":1}\n{"payload":2}',
        headers={"Content-Type": media_type},
    )
    assert answer.json()["count"] == 2


@pytest.mark.parametrize("media_type", ["text/plain", "application/xml", "multipart/form-data", "x"])
def test_another_content_type_is_refused(http: httpx.Client, media_type: str) -> None:
    """A body is JSON or lines of JSON, and says which."""
    answer = http.post(
        "/topics/orders/messages", content='{"payload":1}', headers={"Content-Type": media_type}
    )
    assert error_of(answer) == (422, "BAD_REQUEST")


@pytest.mark.parametrize("before", [2, 1500])
def test_a_bad_line_names_itself_and_what_was_stored(http: httpx.Client, before: int) -> None:
    """Lines are stored as they come: the error says which is wrong, and that those before it are stored."""
    lines = [json.dumps({"payload": i}) for i in range(before)]
    answer = post(http, "\n".join([*lines, '{"payload":', '{"payload":"after"}']))
    assert error_of(answer) == (422, "BAD_REQUEST")
    told = answer.json()["error"]["message"]
    assert f"line {before + 1}:" in told and f"({before} lines before it are stored)" in told
    assert payloads(http, limit=5000) == list(range(before))


def test_a_bad_line_of_a_producer_stores_nothing(http: httpx.Client) -> None:
    """With a producer a body is one transaction."""
    answer = post(http, '{"payload":1}\nnonsense\n', producer="p", sequence=1)
    assert error_of(answer) == (422, "BAD_REQUEST")
    assert "line 2" in answer.json()["error"]["message"]
    assert payloads(http) == []
    assert post(http, '{"payload":1}\n{"payload":2}', producer="p", sequence=1).json()["duplicates"] == 0


def test_the_same_id_again_is_the_same_message(http: httpx.Client) -> None:
    """A retry after a lost answer stores nothing and gets the first offset."""
    body = {"id": str(uuid.uuid4()), "payload": "first"}
    first = post(http, body).json()
    again = post(http, {**body, "payload": "second"}).json()
    assert (again["offset"], again["duplicates"]) == (first["offset"], 1)
    mixed = post(http, [body, {"payload": "new"}, body]).json()
    assert (mixed["offsets"], mixed["duplicates"]) == ([0, 1, 0], 2)
    assert payloads(http) == ["first", "new"]


def test_the_same_id_is_recognised_after_a_restart(serve: Serve) -> None:
    """The window of repeats survives the server."""
    body = {"id": str(uuid.uuid4()), "payload": 1}
    for expected in (0, 1):
        server = serve(auth=False)
        with server.http() as http:
            if not expected:
                server.create("orders")
            answer = post(http, body).json()
            assert (answer["offset"], answer["duplicates"]) == (0, expected)
        server.stop()


@pytest.mark.parametrize("lines", [False, True])
def test_a_producer_and_a_sequence_store_exactly_once(serve: Serve, lines: bool) -> None:
    """A body that is sent again is not stored again, however late; other producers do not interfere."""
    several = [{"payload": i} for i in range(3)]
    body: Any = "".join(json.dumps(one) + "\n" for one in several) if lines else several
    for attempt in range(2):
        server = serve(auth=False)
        with server.http() as http:
            if not attempt:
                server.create("orders")
            answer = post(http, body, producer="spark", sequence=7).json()
            assert (answer["first"], answer["last"], answer["duplicates"]) == (0, 2, 3 * attempt)
        server.stop()
    server = serve(auth=False)
    with server.http() as http:
        assert post(http, body, producer="other", sequence=7).json()["first"] == 3
        assert post(http, body, producer="spark", sequence=9).json()["first"] == 6
        older = post(http, body, producer="spark", sequence=8).json()
        assert older["duplicates"] == 3
        assert len(payloads(http)) == 9


@pytest.mark.parametrize(
    "params",
    [
        {"producer": "p"},
        {"sequence": 1},
        {"producer": "p", "sequence": -1},
        {"producer": "p", "sequence": "x"},
        {"producer": "p", "sequence": 1 << 63},
        {"producer": "x" * 256, "sequence": 1},
    ],
    ids=repr,
)
def test_half_a_producer_is_refused(http: httpx.Client, params: dict[str, Any]) -> None:
    """Producer and sequence go together, and a sequence is a number."""
    assert error_of(post(http, {"payload": 1}, **params)) == (422, "BAD_REQUEST")


def test_publishing_to_another_epoch_is_refused(http: httpx.Client) -> None:
    """A writer that means another topic of the same name is told so, and nothing is stored."""
    epoch = post(http, {"payload": 1}).json()["epoch"]
    assert post(http, {"payload": 2}, epoch=epoch).status_code == 200
    for body in ({"payload": 3}, [{"payload": 3}], '{"payload":3}'):
        assert error_of(post(http, body, epoch="other")) == (409, "EPOCH_CHANGED")
    assert payloads(http) == [1, 2]


@pytest.mark.usefixtures("no_errors_logged")
@pytest.mark.parametrize("kind", [JSON, NDJSON])
def test_a_body_that_breaks_off_stores_nothing_of_its_last_part(
    server: RunningServer, http: httpx.Client, kind: str
) -> None:
    """A client that vanishes in the middle of its body leaves whole messages or none, and no error in the log."""
    assert server._server is not None
    tasks = server._server.server_state.tasks
    for part in (b"", b'{"payload":1}\n{"payl'):
        with Wire(server.port) as wire:
            head = f"POST /topics/orders/messages HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
            wire.send(head.encode() + b"Content-Length: 100000\r\n\r\n" + part)
            until(lambda: server.on_loop(lambda: len(tasks)))
            wire.reset()
        until(lambda: not server.on_loop(lambda: len(tasks)))
    assert payloads(http) in ([], [1])


# Reading


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


@pytest.mark.slow
def test_publishing_a_long_body_does_not_sit_in_memory(tmp_path: Path) -> None:
    """Lines are stored as they come, so a body may be longer than memory."""
    line = b'{"payload":"%b"}\n' % (b"x" * 1000)

    def body() -> Iterator[bytes]:
        for _ in range(400):
            yield line * 100

    # Without remembering ids, which is all that should grow.
    with ServerProcess(tmp_path, "--no-auth", "--dedup-window-s", "0") as server, server.http() as http:
        server.create("orders")
        headers = {"Content-Type": NDJSON}
        http.post("/topics/orders/messages", content=line * 20_000, headers=headers).raise_for_status()
        before = server.memory_bytes()
        answer = http.post("/topics/orders/messages", content=body(), headers=headers)
        assert answer.json()["count"] == 40_000
        # The body is over 40 MB.
        assert server.memory_bytes() - before < 20 * (1 << 20)


# Health, statistics, documents


def test_health_tells_how_it_is(server: RunningServer, http: httpx.Client) -> None:
    """The seed's fields and a few more."""
    with RawWebSocket(server) as raw:
        raw.ask(type="subscribe", topic="orders", client_id="v")
        until(lambda: http.get("/health").json()["connections"] == 1)  # those of other tests are gone
        told = http.get("/health").json()
    assert told["status"] == "ok" and "problem" not in told
    assert told["uptime_sec"] > 0
    assert (told["topics"], told["subscribers"], told["connections"]) == (1, 1, 1)
    assert (told["version"], told["protocol"]) == (__version__, PROTOCOL_VERSION)
    assert told["log"].startswith("sqlite:///")


def test_stats_count_what_happened(serve: Serve) -> None:
    """Per topic, per subscriber and in all."""
    server = serve(auth=False)
    server.create("orders")
    body = {"id": str(uuid.uuid4()), "payload": 1}
    with RawWebSocket(server) as raw, server.http() as http:
        raw.ask(type="subscribe", topic="orders", client_id="v", policy="lossless")
        for _ in range(2):
            post(http, body)
        post(http, {"payload": 2})
        assert [raw.hear()["offset"] for _ in range(2)] == [0, 1]
        told = http.get("/stats").json()
    orders = told["topics"]["orders"]
    assert (orders["messages"], orders["subscribers"], orders["lag"]) == (2, 1, 0)
    assert told["subscribers"] == [
        {"client_id": "v", "topic": "orders", "policy": "lossless", "sent": 2, "dropped": 0, "lag": 0}
    ]
    counts = ("published", "duplicates", "delivered", "dropped", "in_flight")
    assert [told[name] for name in counts] == [2, 1, 2, 0, 0]
    assert told["connections"] == 1 and set(told["rates"]) == {"published", "delivered", "dropped"}


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nothing", 404, "NOT_FOUND"),
        ("POST", "/nothing", 404, "NOT_FOUND"),
        ("GET", "/topics/orders", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/topics/orders/nothing", 404, "NOT_FOUND"),
        ("PUT", "/topics", 405, "METHOD_NOT_ALLOWED"),
        ("DELETE", "/topics", 405, "METHOD_NOT_ALLOWED"),
        ("PATCH", "/topics/orders/messages", 405, "METHOD_NOT_ALLOWED"),
        ("POST", "/health", 405, "METHOD_NOT_ALLOWED"),
        ("GET", "/ws", 404, "NOT_FOUND"),
        ("GET", "/topics/a%2Fb/messages", 404, "NOT_FOUND"),
        ("GET", "/topics/a%20b/messages", 422, "BAD_REQUEST"),
        ("GET", "/topics/%FF/messages", 422, "BAD_REQUEST"),
        ("GET", "/topics/%00/messages", 422, "BAD_REQUEST"),
        ("DELETE", "/topics/missing", 404, "TOPIC_NOT_FOUND"),
        ("GET", "/" + "x" * 5000, 404, "NOT_FOUND"),
    ],
)
def test_every_error_has_the_one_shape(
    http: httpx.Client, method: str, path: str, status: int, code: str
) -> None:
    """Whatever fails, wherever: ``{"error": {"code", "message"}}``."""
    assert error_of(http.request(method, path)) == (status, code)


def test_405_says_what_is_allowed(http: httpx.Client) -> None:
    """As HTTP asks for."""
    assert http.put("/topics").headers["allow"]


def test_a_bug_is_told_as_internal_and_the_server_goes_on(
    server: RunningServer, http: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """Something that should not be is 500 INTERNAL, says nothing of the inside, and is in the log with its cause."""

    async def broken() -> Any:
        raise ZeroDivisionError("secret")

    topics = server.broker.log.topics
    server.broker.log.topics = broken  # type: ignore[method-assign]
    answer = http.get("/topics")
    server.broker.log.topics = topics  # type: ignore[method-assign]
    assert error_of(answer) == (500, "INTERNAL")
    assert "secret" not in answer.text
    [line] = [one for one in caplog.records if "GET /topics of anonymous failed" in one.getMessage()]
    assert vars(line)["caller"] == "anonymous"
    with server.http() as another:
        assert another.get("/topics").status_code == 200


def test_the_openapi_document_has_examples_and_errors(http: httpx.Client) -> None:
    """Every operation says what it is for, shows an example of what it takes, and names its errors."""
    document = http.get("/openapi.json").json()
    assert document["info"]["version"] == __version__
    schemas = document["components"]["schemas"]
    operations = [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    assert len(operations) >= 9
    for method, path, operation in operations:
        where = f"{method} {path}"
        assert operation.get("summary") and operation.get("description"), where
        assert {"403"} <= set(operation["responses"]), where
        for status, response in operation["responses"].items():
            if status.startswith(("4", "5")) and (path, status) != ("/health", "503"):
                schema = response["content"][JSON]["schema"]
                shape = "KernelError" if path.startswith("/api/") else "ErrorResponse"
                assert schema == {"$ref": f"#/components/schemas/{shape}"}, (where, status)
        for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
            assert has_example(content, schemas), (where, media_type)
        if "/topics" in path or "/api/" in path:
            assert {"401", "422", "503"} <= set(operation["responses"]), where
    published = document["paths"]["/topics/{name}/messages"]["post"]
    assert {"404", "409", "413"} <= set(published["responses"])


def has_example(content: dict[str, Any], schemas: dict[str, Any]) -> bool:
    """Whether a body has an example, in itself or in the fields of its schema."""
    if "example" in content or "examples" in content:
        return True
    schema = content["schema"]
    if "$ref" in schema:
        schema = schemas[schema["$ref"].rpartition("/")[2]]
    return any("examples" in field for field in schema.get("properties", {}).values())


def test_the_examples_of_the_openapi_document_work(http: httpx.Client) -> None:
    """What the document shows is what the server takes."""
    document = http.get("/openapi.json").json()
    content = document["paths"]["/topics/{name}/messages"]["post"]["requestBody"]["content"]
    for example in content[JSON]["examples"].values():
        assert post(http, example["value"]).status_code == 200
    assert post(http, content[NDJSON]["example"]).status_code == 200
    name = document["components"]["schemas"]["CreateTopicRequest"]["properties"]["name"]["examples"][0]
    http.delete("/topics/orders").raise_for_status()
    assert http.post("/topics", json={"name": name}).status_code == 201


def resolved(document: dict[str, Any], reference: str) -> Any:
    found: Any = document
    for part in reference.removeprefix("#/").split("/"):
        found = found[part]
    return found


def test_the_asyncapi_document_is_whole_and_its_examples_decode(http: httpx.Client) -> None:
    """Every reference leads somewhere, and every example is a message that the protocol's own decoder takes."""
    document = http.get("/asyncapi.json").json()
    assert document["asyncapi"].startswith("3.") and document["info"]["version"] == __version__

    def check_references(node: Any) -> None:
        if isinstance(node, dict):
            if "$ref" in node:
                assert resolved(document, node["$ref"]) is not None
            for value in node.values():
                check_references(value)
        elif isinstance(node, list):
            for value in node:
                check_references(value)

    check_references(document)
    assert all(code in document["info"]["description"] for code in ErrorCode)
    received = document["operations"]["receive"]["messages"]
    sent = document["operations"]["send"]["messages"]
    assert len(received) == 4 and len(sent) == 5
    for reference in received:
        for example in _examples(document, reference):
            assert decode_client_message(json.dumps(example).encode()).type == example["type"]
    for reference in sent:
        for example in _examples(document, reference):
            decoded = msgspec.json.decode(json.dumps(example).encode(), type=ServerMessage)
            assert json.loads(msgspec.json.encode(decoded)) == example
    types = {
        example["type"] for reference in (*received, *sent) for example in _examples(document, reference)
    }
    assert types == {
        "subscribe",
        "unsubscribe",
        "publish",
        "ping",
        "ack",
        "event",
        "error",
        "pong",
        "info",
    }


def _examples(document: dict[str, Any], reference: dict[str, str]) -> list[Any]:
    message = resolved(document, resolved(document, reference["$ref"])["$ref"])
    return [example["payload"] for example in message["examples"]]


def test_the_client_examples_of_the_asyncapi_document_work(server: RunningServer, http: httpx.Client) -> None:
    """What the document shows is what the server answers well."""
    document = http.get("/asyncapi.json").json()
    with RawWebSocket(server) as raw:
        for reference in document["operations"]["receive"]["messages"]:
            for example in _examples(document, reference):
                assert raw.ask(**example)["type"] in ("ack", "pong")


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
