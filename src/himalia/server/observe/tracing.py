"""OpenTelemetry spans from publish to delivery and of requests to kernels, with the extra ``himalia[tracing]``.

A publish continues the trace of its ``traceparent`` header; its own span's context takes that header's place in
the stored record, so that the delivery and later readers of the record continue the same trace.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import msgspec

from himalia.errors import ConfigurationError
from himalia.log.api import Batch
from himalia.record import Draft, Record

_encode, _decode = msgspec.json.encode, msgspec.json.decode


def make_tracing() -> OpenTelemetryTracing:
    """Return tracing with this process's OpenTelemetry provider; if there is none, with one that exports by OTLP.

    The usual variables configure the exporter: ``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_SERVICE_NAME`` and so on.
    """
    try:
        _provide()
        return OpenTelemetryTracing()
    except ImportError:
        raise ConfigurationError(
            "tracing needs OpenTelemetry: pip install 'himalia[tracing]', or leave --tracing out"
        ) from None


def _provide() -> None:
    from opentelemetry import trace
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import SERVICE_NAME, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return  # the embedding program has set one
    name = os.environ.get("OTEL_SERVICE_NAME", "himalia")
    provider = TracerProvider(resource=Resource.create({SERVICE_NAME: name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


class OpenTelemetryTracing:
    """Implements ``Tracing`` of pub/sub and ``RequestTracing`` of kernels."""

    def __init__(self) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._trace = trace
        self._tracer = trace.get_tracer("himalia")
        self._propagator = TraceContextTextMapPropagator()

    def start_publish(self, batch: Batch) -> tuple[Batch, Callable[[BaseException | None], None]]:
        spans = []
        drafts = []
        for draft in batch.drafts:
            headers: dict[str, str] = _decode(draft.headers)
            span = self._tracer.start_span(
                f"publish {batch.topic}",
                context=self._propagator.extract(headers),
                kind=self._trace.SpanKind.PRODUCER,
                attributes={"messaging.system": "himalia", "messaging.destination.name": batch.topic},
            )
            self._propagator.inject(headers, context=self._trace.set_span_in_context(span))
            spans.append(span)
            drafts.append(Draft(draft.id, draft.payload, _encode(headers)))

        def finish(error: BaseException | None) -> None:
            for span in spans:
                if error is not None:
                    span.record_exception(error)
                    span.set_status(self._trace.StatusCode.ERROR, str(error))
                span.end()

        return msgspec.structs.replace(batch, drafts=drafts), finish

    def record_delivery(self, topic: str, records: Sequence[Record], subscribers: int) -> None:
        for record in records:
            span = self._tracer.start_span(
                f"deliver {topic}",
                context=self._propagator.extract(_decode(record.headers)),
                kind=self._trace.SpanKind.CONSUMER,
                attributes={
                    "messaging.system": "himalia",
                    "messaging.destination.name": topic,
                    "himalia.offset": record.offset,
                    "himalia.subscribers": subscribers,
                },
                start_time=record.ts_us * 1000,
            )
            span.end(time.time_ns())

    def sending(self, request_id: str, topic: str) -> Callable[[str], None]:
        span = self._tracer.start_span(
            f"execute {topic}",
            kind=self._trace.SpanKind.CLIENT,
            attributes={
                "messaging.system": "himalia",
                "messaging.destination.name": topic,
                "himalia.request_id": request_id,
            },
        )

        def finish(status: str) -> None:
            span.set_attribute("himalia.status", status)
            if status != "ok":
                span.set_status(self._trace.StatusCode.ERROR, status)
            span.end()

        return finish
