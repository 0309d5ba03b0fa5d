"""Every metric is in docs/operations.md, and every one that is there exists."""

from __future__ import annotations

import re

from tests.docs.markdown import code_spans, rows, section
from tests.servers import RunningServer


def test_the_metrics_are_those_of_the_document(operations: str, server: RunningServer) -> None:
    """Names and kinds in the table are what ``/metrics`` answers."""
    with server.http() as http:
        http.get("/topics/nothing/messages")  # so that there is an error to count
        text = http.get("/metrics").text
    given = dict(re.findall(r"^# TYPE (\S+) (\S+)$", text, flags=re.MULTILINE))
    table = rows(section(operations, "## Metrics"))
    assert {code_spans(name)[0]: kind for name, kind, _ in table} == given


def test_the_labels_are_documented(operations: str, server: RunningServer) -> None:
    """A metric that is split by something says by what."""
    with server.http() as http:
        http.get("/topics/nothing/messages")
        text = http.get("/metrics").text
    labels = set(re.findall(r"[{,](\w+)=", text)) - {"le"}
    assert labels
    assert labels <= set(code_spans(section(operations, "## Metrics")))
