"""Publishing over REST: one message, a list, NDJSON, and exactly once."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.server.raw_clients import Wire, until
from tests.server.rest.calls import JSON, NDJSON, Serve, error_of, payloads, post
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
