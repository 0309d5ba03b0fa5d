"""Health and statistics, errors, and the OpenAPI and AsyncAPI documents."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import httpx
import msgspec
import pytest

from himalia import __version__
from himalia.errors import ErrorCode
from himalia.protocol import PROTOCOL_VERSION, ServerMessage, decode_client_message
from tests.server.raw_clients import RawWebSocket, until
from tests.server.rest.calls import JSON, NDJSON, Serve, error_of, post
from tests.servers import RunningServer


@pytest.fixture
def server(emptied: RunningServer) -> RunningServer:
    return emptied


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx.Client]:
    server.create("orders")
    with server.http() as http:
        yield http


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

    topics = server.context.log.topics
    server.context.log.topics = broken  # type: ignore[method-assign]
    answer = http.get("/topics")
    server.context.log.topics = topics  # type: ignore[method-assign]
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
