"""The OpenAPI document against the server: whatever it allows works, whatever it forbids is refused, by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi.checks import positive_data_acceptance

from himalia.server.app import create_app
from himalia.settings import Settings
from tests.servers import RunningServer
from tests.tables.sample import write_sample

TOKEN = "correct-horse-battery-staple"

document = create_app(Settings(auth=False, log="memory://")).openapi()
# 414 refuses a request too: what is too long for its schema may be too long for a URL.
REFUSALS = [*SchemathesisConfig().projects.default.checks.negative_data_rejection.expected_statuses, "414"]
config = SchemathesisConfig.from_dict(
    {"checks": {"negative_data_rejection": {"expected-statuses": REFUSALS}}}
)
# A stream does not end, so no answer to it can be checked; test_sse.py asks for it in every way there is.
api = schemathesis.openapi.from_dict(document, config=config).exclude(path_regex="/events$")
# Of a kernel that is not there nothing can be started, whatever a request says.
absent = schemathesis.openapi.from_dict(document).include(path_regex="^/api/kernels/{")


@pytest.fixture(scope="module")
def documented(
    serve_all: Callable[..., RunningServer], tmp_path_factory: pytest.TempPathFactory
) -> RunningServer:
    """With tables, but without kernels: a generated request may be one that starts a process, or opens a file."""
    warehouse = tmp_path_factory.mktemp("tables")
    write_sample(warehouse)
    return serve_all(token=TOKEN, kernels=False, warehouse=warehouse, refused_key_delay_s=0)


@pytest.fixture(scope="module")
def with_kernels(serve_all: Callable[..., RunningServer]) -> RunningServer:
    return serve_all(token=TOKEN, refused_key_delay_s=0)


@pytest.fixture
def orders(documented: RunningServer) -> None:
    """The topic of the document's examples, which one of the tests deletes."""
    with documented.http(headers=documented.headers) as http:
        assert http.post("/topics", json={"name": "orders"}).status_code in (201, 409)


@schemathesis.serializer("application/x-ndjson")
def lines(context: schemathesis.SerializationContext, value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


def is_beyond_the_document(case: schemathesis.Case) -> bool:
    """Whether a request breaks a rule that OpenAPI has no words for, so that it may be refused all the same."""
    query = case.query or {}
    return (
        # Two parameters that go together, and three of which there is one at most.
        ("producer" in query) != ("sequence" in query)
        or sum(name in query for name in ("from", "since", "last")) > 1
        # A time in any of several forms.
        or "since" in query
        # How many lines there are, and that each is JSON.
        or case.media_type == "application/x-ndjson"
        # Its limit is a setting.
        or "last" in query
        # CEL.
        or "filter" in query
        # SQL, and what columns there are.
        or any(name in query for name in ("where", "order", "columns"))
    )


LITTLE = settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), database=None
)


@pytest.mark.slow
@pytest.mark.usefixtures("orders")
@api.parametrize()
@LITTLE
def test_the_server_is_as_its_document_says(case: schemathesis.Case, documented: RunningServer) -> None:
    """Every generated request, right or wrong, has an answer that the document tells of, in the form it tells."""
    excluded = [positive_data_acceptance] if is_beyond_the_document(case) else []
    case.call_and_validate(
        base_url=documented.url, headers={"X-API-Key": TOKEN}, timeout=10, excluded_checks=excluded
    )


@pytest.mark.slow
@absent.parametrize()
@LITTLE
def test_calls_to_a_kernel_that_is_not_there(case: schemathesis.Case, with_kernels: RunningServer) -> None:
    """They are answered as the document says too, and start nothing."""
    case.call_and_validate(base_url=with_kernels.url, headers={"X-API-Key": TOKEN}, timeout=10)
    assert not with_kernels.context.kernel_count
