"""Every successful answer of a real server has the shape that the OpenAPI and AsyncAPI documents show."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from jupyter_client.manager import KernelManager

from himalia.errors import ErrorCode
from himalia.protocol import NoticeKind
from himalia.token_proof import Challenge
from tests.server.raw_clients import RawWebSocket, until
from tests.server.schema_check import SchemaCheck
from tests.servers import DEADLINE_S, RunningServer
from tests.shared_kernel_server import kernel_server
from tests.tables.sample import write_sample

TOKEN = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """With a kernel, a topic, tables and a key, so that no list is empty."""
    directory = tmp_path_factory.mktemp("documented")
    write_sample(directory / "warehouse")
    with kernel_server(directory, auth=True, token=TOKEN, warehouse=directory / "warehouse") as server:
        yield server


class Calls:
    """Makes calls of the REST API and compares their answers with the OpenAPI document."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http
        self.document: dict[str, Any] = self.http.get("/openapi.json").json()
        self.made: set[tuple[str, str, str]] = set()
        self._check = SchemaCheck(self.document)

    def __call__(self, method: str, path: str, *, query: str = "", body: Any = None, **names: str) -> Any:
        """Make a call of a documented path, with ``names`` in place of its parameters; return its answer."""
        answer = self.http.request(method, path.format(**names) + query, json=body)
        return self.check(method, path, answer)

    def check(self, method: str, path: str, answer: httpx.Response) -> Any:
        status = str(answer.status_code)
        assert answer.is_success, f"{method} {path}: {answer.text}"
        self.made.add((method, path, status))
        documented = self.document["paths"][path][method.lower()]["responses"][status]
        if "content" not in documented:
            assert not answer.content
            return None
        media_type = answer.headers["content-type"].partition(";")[0]
        found = answer.json() if media_type == "application/json" else answer.text
        problems = self._check.problems(documented["content"][media_type].get("schema", {}), found)
        assert not problems, f"{method} {path}: {problems}"
        return found

    @property
    def documented(self) -> set[tuple[str, str, str]]:
        """Every call of the document with each of its successful statuses."""
        return {
            (method.upper(), path, status)
            for path, methods in self.document["paths"].items()
            for method, call in methods.items()
            for status in call["responses"]
            if status.startswith("2")
        }


@pytest.fixture
def connection_file(server: RunningServer) -> Iterator[Path]:
    """A kernel that another program started, in the runtime directory that the server looks in."""
    manager = KernelManager(
        connection_file=str(Path(os.environ["JUPYTER_RUNTIME_DIR"]) / "kernel-theirs.json")
    )
    manager.start_kernel()
    client = manager.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=DEADLINE_S)
    yield Path(manager.connection_file)
    client.stop_channels()
    manager.shutdown_kernel(now=True)


@pytest.fixture
def calls(server: RunningServer) -> Iterator[Calls]:
    with server.http(headers=server.headers) as http:
        yield Calls(http)


def test_every_call_answers_in_its_documented_shape(calls: Calls, connection_file: Path) -> None:
    """No answer has a field that the document lacks, lacks one that it requires, or has one of another type."""
    _call_topics(calls)
    _call_server(calls)
    _call_kernels(calls)
    _attach(calls, connection_file)
    _call_sessions(calls)
    calls("DELETE", "/topics/{name}", name="orders")
    # Its messages are compared with the AsyncAPI document below.
    assert calls.documented - calls.made == {("GET", "/topics/{name}/events", "200")}


def _call_topics(calls: Calls) -> None:
    calls("POST", "/topics", body={"name": "orders", "retention": {"count": 100}})
    messages = "/topics/{name}/messages"
    one = calls("POST", messages, name="orders", body={"payload": {"n": 1}, "headers": {"source": "shop"}})
    assert one["offset"] == 0
    assert calls("POST", messages, name="orders", body=[{"payload": {"n": 2}}, {"payload": 3}])[
        "offsets"
    ] == [1, 2]
    assert len(calls("GET", messages, name="orders")["messages"]) == 3
    assert calls("GET", messages, name="orders", query="?filter=message.payload.n>0")["failed"]
    assert calls("GET", "/topics")["topics"]


def _call_server(calls: Calls) -> None:
    assert calls("GET", "/health")["version"]
    del calls.http.headers["authorization"]
    assert calls("GET", "/health") == {"status": "ok"}
    calls("GET", "/proof", query=Challenge(TOKEN).path.removeprefix("/proof"))
    calls.http.headers["authorization"] = f"Bearer {TOKEN}"
    calls("POST", "/clock/confirm")
    calls("GET", "/metrics")
    assert calls("GET", "/tables")["tables"]
    assert calls("GET", "/tables/{name}", name="executions")["rows"]
    calls("GET", "/asyncapi.json")


def _call_kernels(calls: Calls) -> None:
    kernel = "/api/kernels/{kernel_id}"
    execution = kernel + "/executions/{request_id}"
    assert calls("GET", "/api/kernelspecs")["kernelspecs"]
    id = calls("POST", "/api/kernels", body={"name": "python3"})["id"]
    assert calls("GET", "/api/kernels")
    calls("GET", kernel, kernel_id=id)
    failed = calls("POST", kernel + "/execute", kernel_id=id, body={"code": "print(1); 1 / 0", "wait": True})
    assert failed["error"] and failed["outputs"]
    asking = {"code": "print(input('Who? '))", "allow_stdin": True}
    request_id = calls("POST", kernel + "/execute", kernel_id=id, body=asking)["request_id"]
    reply = f"/api/kernels/{id}/input"
    answered = until(lambda: (sent := calls.http.post(reply, json={"value": "Ada"})).is_success and sent)
    calls.check("POST", kernel + "/input", answered)
    until(lambda: calls("GET", execution, kernel_id=id, request_id=request_id)["status"] == "ok")
    calls("DELETE", execution, kernel_id=id, request_id=request_id)
    calls("POST", kernel + "/interrupt", kernel_id=id)
    with calls.http.stream("GET", f"/topics/kernels.{id}/events") as stream:
        lines = stream.iter_lines()  # kept: the stream would be closed with it
        next(lines)
        assert calls("GET", "/stats")["subscribers"]
    calls("POST", kernel + "/restart", kernel_id=id)
    calls("DELETE", kernel, kernel_id=id)


def _attach(calls: Calls, connection_file: Path) -> None:
    # Beside a kernel that answers, one that does not.
    gone = {**json.loads(connection_file.read_bytes()), "shell_port": 1}
    connection_file.with_name("kernel-gone.json").write_text(json.dumps(gone))
    attached = calls("POST", "/api/kernels/attach", body={"connection_file": str(connection_file)})
    assert attached["foreign"]
    result = calls("POST", "/api/kernels/attach", body={"all": True})
    assert result["attached"] and result["skipped"]
    calls("DELETE", "/api/kernels/{kernel_id}", kernel_id=attached["id"])


def _call_sessions(calls: Calls) -> None:
    assert calls("GET", "/session")["caller"] == "token"
    calls("POST", "/session")
    [session] = calls("GET", "/sessions")["sessions"]
    assert calls("DELETE", "/sessions/{id}", id=session["id"])["count"] == 1
    calls.http.cookies.clear()
    calls("POST", "/session")
    calls("DELETE", "/sessions")
    calls.http.cookies.clear()
    calls("POST", "/session")
    del calls.http.headers["authorization"]
    calls("DELETE", "/session")
    calls.http.headers["authorization"] = f"Bearer {TOKEN}"


class Frames:
    """Compares WebSocket frames and the data of event streams with the AsyncAPI document."""

    def __init__(self, http: httpx.Client) -> None:
        document = http.get("/asyncapi.json").json()
        self._check = SchemaCheck(document)
        self._payloads = {
            name: message["payload"] for name, message in document["components"]["messages"].items()
        }
        self.seen: set[str] = set()

    def check(self, message: dict[str, Any]) -> dict[str, Any]:
        problems = self._check.problems(self._payloads[message["type"]], message)
        assert not problems, f"{message}: {problems}"
        self.seen.add(message.get("msg", message["type"]))
        return message


def test_every_frame_is_as_the_asyncapi_document_shows(server: RunningServer) -> None:
    """Neither an ack, nor an event, an error or a notice has a field that the document lacks."""
    server.create("eu.a", "eu.b")
    with server.http(headers=server.headers) as http, RawWebSocket(server) as raw:
        frames = Frames(http)
        viewer = {"type": "subscribe", "client_id": "viewer", "topic": "eu.*"}
        assert frames.check(raw.ask(**viewer, from_={"eu.a": 0, "eu.b": {"offset": 9, "epoch": "another"}}))[
            "topics"
        ]
        frames.check(raw.hear())
        message = {"id": str(uuid.uuid4()), "payload": {"n": 1}, "headers": {"source": "shop"}}
        raw.say(type="publish", topic="eu.a", message=message, request_id="1")
        for _ in ("ack", "event"):
            frames.check(raw.hear())
        frames.check(raw.ask(type="ping"))
        frames.check(raw.ask(type="subscribe", client_id="viewer", topic="missing"))
        server.create("eu.c")
        frames.check(raw.hear())
        http.delete("/topics/eu.c").raise_for_status()
        frames.check(raw.hear())
        with RawWebSocket(server) as other:
            frames.check(other.ask(**viewer))
            frames.check(raw.hear())
            frames.check(other.ask(type="unsubscribe", client_id="viewer", topic="eu.*"))
    assert frames.seen == {
        "ack",
        "event",
        "error",
        "pong",
        NoticeKind.GAP,
        NoticeKind.TOPIC_CREATED,
        NoticeKind.TOPIC_DELETED,
        NoticeKind.REPLACED,
    }


def test_every_field_that_the_asyncapi_document_requires_is_required(server: RunningServer) -> None:
    """A client's message that lacks one of them is refused."""
    with server.http(headers=server.headers) as http, RawWebSocket(server) as raw:
        document = http.get("/asyncapi.json").json()
        for reference in document["operations"]["receive"]["messages"]:
            message = document["components"]["messages"][reference["$ref"].rpartition("/")[2]]
            [example] = [example["payload"] for example in message["examples"]]
            [required] = [part["required"] for part in message["payload"]["allOf"] if "required" in part]
            for field in required:
                raw.say(**{name: value for name, value in example.items() if name != field})
                assert raw.hear()["error"]["code"] == ErrorCode.BAD_REQUEST


def test_an_event_stream_has_the_messages_of_the_asyncapi_document(server: RunningServer) -> None:
    """Server-Sent Events carry the same messages as the WebSocket."""
    server.create("stream")
    with server.http(headers=server.headers) as http:
        frames = Frames(http)
        http.post("/topics/stream/messages", json={"payload": 1}).raise_for_status()
        with http.stream("GET", "/topics/stream/events", params={"from": 0, "epoch": "another"}) as stream:
            data = (line.removeprefix("data: ") for line in stream.iter_lines() if line.startswith("data: "))
            for _ in ("gap", "event"):
                frames.check(json.loads(next(data)))
    assert frames.seen == {"event", NoticeKind.GAP}


def test_a_field_that_no_schema_names_is_noticed(calls: Calls) -> None:
    """The comparison finds a field too many, one too few, and one of another type."""
    check = SchemaCheck(calls.document)
    topics = {"$ref": "#/components/schemas/TopicList"}
    [topic, *_] = calls("GET", "/topics")["topics"]
    assert not check.problems(topics, {"topics": [topic]})
    for wrong in (
        {**topic, "colour": "red"},
        {name: value for name, value in topic.items() if name != "epoch"},
        {**topic, "messages": "3"},
        {**topic, "retention": {**topic["retention"], "colour": "red"}},
    ):
        assert check.problems(topics, {"topics": [wrong]})
