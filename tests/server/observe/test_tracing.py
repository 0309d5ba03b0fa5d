"""One trace from the publisher's own span to every delivery, carried by the record itself."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from himalia.errors import ConfigurationError
from himalia.server.context import ServerContext
from himalia.settings import Settings
from tests.server.raw_clients import until
from tests.servers import RunningServer, ask, hear_events, message

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GIVEN = f"00-{TRACE}-{SPAN}-01"


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    """Where all spans of this process go. A provider can be set once, so this is the module's only one."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Iterator[Callable[..., list[ReadableSpan]]]:
    exporter.clear()

    def finished(count: int, name: str = "") -> list[ReadableSpan]:
        """The spans of ours with this name, as soon as there are so many."""

        def enough() -> list[ReadableSpan]:
            found = [
                span
                for span in exporter.get_finished_spans()
                if span.instrumentation_scope and span.instrumentation_scope.name == "himalia"
                if span.name.startswith(name)
            ]
            return found if len(found) >= count else []

        found: list[ReadableSpan] = until(enough)
        return found

    yield finished
    exporter.clear()


@pytest.fixture(scope="module")
def tracing(serve_all: Callable[..., RunningServer], exporter: InMemorySpanExporter) -> RunningServer:
    return serve_all(auth=False, tracing=True)


@pytest.fixture
def traced(tracing: RunningServer) -> Iterator[RunningServer]:
    tracing.create("orders")
    yield tracing
    with tracing.http() as http:
        http.delete("/topics/orders").raise_for_status()


def ids(span: ReadableSpan) -> tuple[str, str]:
    context = span.get_span_context()
    assert context is not None
    return f"{context.trace_id:032x}", f"{context.span_id:016x}"


def parent(span: ReadableSpan) -> str | None:
    return None if span.parent is None else f"{span.parent.span_id:016x}"


async def test_publish_and_delivery_continue_the_trace_of_the_publisher(
    traced: RunningServer, spans: Callable[..., list[ReadableSpan]]
) -> None:
    """The publish is a child of the given span, the delivery a child of the publish, all in the given trace."""
    async with traced.connect() as ws:
        await ask(ws, type="subscribe", topic="orders", client_id="v")
        given = message(1, headers={"traceparent": GIVEN, "tracestate": "vendor=1", "source": "shop"})
        await ask(ws, type="publish", topic="orders", message=given)
    (publishing,) = spans(1, "publish orders")
    (delivering,) = spans(1, "deliver orders")
    assert (ids(publishing)[0], parent(publishing), publishing.kind) == (TRACE, SPAN, SpanKind.PRODUCER)
    assert (ids(delivering)[0], parent(delivering)) == (TRACE, ids(publishing)[1])
    assert delivering.kind is SpanKind.CONSUMER
    attributes = dict(delivering.attributes or {})
    assert attributes["messaging.destination.name"] == "orders"
    assert (attributes["himalia.offset"], attributes["himalia.subscribers"]) == (0, 1)
    assert publishing.status.status_code is not StatusCode.ERROR


async def test_the_record_carries_the_trace_on(
    traced: RunningServer, spans: Callable[..., list[ReadableSpan]]
) -> None:
    """The stored ``traceparent`` is the publish's own span, so that whoever reads it later continues from there."""
    async with traced.connect() as ws:
        given = message(1, headers={"traceparent": GIVEN, "tracestate": "vendor=1", "source": "shop"})
        await ask(ws, type="publish", topic="orders", message=given)
        await ask(ws, type="subscribe", topic="orders", client_id="v", last_n=1)
        (event,) = await hear_events(ws, 1)
    (publishing,) = spans(1, "publish orders")
    headers = event["message"]["headers"]
    assert headers["traceparent"] == f"00-{TRACE}-{ids(publishing)[1]}-01"
    assert (headers["tracestate"], headers["source"]) == ("vendor=1", "shop")
    assert headers["publisher"]


@pytest.mark.parametrize(
    "headers", [None, {"traceparent": "nonsense"}, {"traceparent": GIVEN[:-3]}], ids=repr
)
def test_without_a_trace_a_new_one_begins(
    traced: RunningServer, spans: Callable[..., list[ReadableSpan]], headers: dict[str, str] | None
) -> None:
    """A publisher that knows nothing of tracing, or gets it wrong, is traced from here on."""
    with traced.http() as http:
        http.post("/topics/orders/messages", json={"payload": 1, "headers": headers}).raise_for_status()
        stored = http.get("/topics/orders/messages").json()["messages"][0]["message"]["headers"]
    (publishing,) = spans(1, "publish orders")
    assert parent(publishing) is None
    assert stored["traceparent"].startswith("00-{}-{}-".format(*ids(publishing)))


def test_every_message_of_a_list_has_its_own_span(
    traced: RunningServer, spans: Callable[..., list[ReadableSpan]]
) -> None:
    """Messages that are stored together may belong to different traces."""
    traces = [f"{i:032x}" for i in range(1, 4)]
    body = [{"payload": 1, "headers": {"traceparent": f"00-{one}-{SPAN}-01"}} for one in traces]
    with traced.http() as http:
        http.post("/topics/orders/messages", json=body).raise_for_status()
    assert sorted(ids(span)[0] for span in spans(3, "publish")) == traces


def test_a_publish_that_fails_ends_its_span_with_the_error(
    traced: RunningServer, spans: Callable[..., list[ReadableSpan]]
) -> None:
    """A failure is seen in the trace, and nothing is delivered."""
    with traced.http() as http:
        answer = http.post("/topics/missing/messages", json={"payload": 1})
        assert answer.status_code == 404
    (publishing,) = spans(1, "publish missing")
    assert publishing.status.status_code is StatusCode.ERROR
    assert [event.name for event in publishing.events] == ["exception"]
    assert "deliver" not in {span.name.split()[0] for span in spans(1)}


def test_without_tracing_headers_are_stored_as_they_came(server: RunningServer) -> None:
    """A trace that is given is kept for whoever reads the record, tracing or not."""
    server.create("orders")
    with server.http() as http:
        body = {"payload": 1, "headers": {"traceparent": GIVEN}}
        http.post("/topics/orders/messages", json=body).raise_for_status()
        stored = http.get("/topics/orders/messages").json()["messages"][0]["message"]["headers"]
    assert stored["traceparent"] == GIVEN


def test_tracing_without_the_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra is named, rather than a module that is missing."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "opentelemetry"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigurationError, match=r"himalia\[tracing\]"):
        ServerContext(Settings(auth=False, log="memory://", tracing=True))


def test_tracing_is_off_unless_asked_for(server: RunningServer, exporter: InMemorySpanExporter) -> None:
    """No span is made that nobody wanted."""
    exporter.clear()
    server.create("orders")
    with server.http() as http:
        http.post("/topics/orders/messages", json={"payload": 1}).raise_for_status()
    assert [span.name for span in exporter.get_finished_spans() if span.name.startswith("publish")] == []


def test_no_span_has_a_key(serve: Callable[..., RunningServer], exporter: InMemorySpanExporter) -> None:
    """Only the spans that are documented leave the process: those of the web framework have the whole address."""
    key = "correct-horse-battery-staple"
    server = serve(token=key, tracing=True)
    server.create("orders")
    exporter.clear()
    with server.http() as http:
        http.post("/topics/orders/messages", params={"token": key}, json={"payload": 1}).raise_for_status()
        http.get("/topics/orders/messages", params={"token": key, "since": "x"})
        http.get("/", params={"token": key})
        http.get("/topics", params={"token": f"{key}-wrong"})
    found = until(exporter.get_finished_spans)
    assert {span.instrumentation_scope.name for span in found if span.instrumentation_scope} == {"himalia"}
    assert not any(key in span.to_json() for span in found)


def test_a_request_to_a_kernel_is_a_span(
    traced: RunningServer, spans: Callable[..., list[ReadableSpan]]
) -> None:
    """From when it is sent until the kernel is done with it, with its id and how it ended."""
    with traced.http() as http:
        kernel = http.post("/api/kernels").raise_for_status().json()
        where = f"/api/kernels/{kernel['id']}"
        results = [
            http.post(f"{where}/execute", json={"code": code, "wait": True}).json()
            for code in ("1 + 1", "1 / 0")
        ]
        found = spans(2, f"execute {kernel['topic']}")
        http.delete(where).raise_for_status()
    assert [span.attributes["himalia.request_id"] for span in found if span.attributes] == [
        result["request_id"] for result in results
    ]
    assert [span.attributes["himalia.status"] for span in found if span.attributes] == ["ok", "error"]
    assert [span.status.status_code for span in found] == [StatusCode.UNSET, StatusCode.ERROR]
    for span, result in zip(found, results, strict=True):
        assert span.kind is SpanKind.CLIENT and span.start_time and span.end_time
        assert span.start_time / 1000 <= result["started_us"] <= span.end_time / 1000
