"""Payloads are text to the page: what is stored is shown and copied, and what is typed is stored."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playwright.sync_api import Page, expect

from tests.page.browser import goto
from tests.page.live_kernel import LiveKernel
from tests.servers import RunningServer

pytestmark = pytest.mark.slow

# Each of these is another text, or another value, once JSON.parse and JSON.stringify had it.
CHANGED_BY_PARSING = [
    "9007199254740993",
    "9007199254790991",
    "12345678901234567890",
    "1180591620717411303424",
    "1.0",
    "60.0",
    "1e400",
    "-0",
    "0.10",
    '{"total":1,"total":2.0}',
    '{"b":1,"1":2,"a":[1.50,{}]}',
    '"M\\u00fcller"',
]
CANONICAL = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


@pytest.fixture
def orders(server: RunningServer) -> str:
    server.create("orders")
    return "orders"


@pytest.fixture
def reader(new_page: Callable[..., Page], server: RunningServer, orders: str) -> Page:
    page = new_page(permissions=["clipboard-read", "clipboard-write"])
    goto(page, server, f"#/topics/{orders}")
    return page


def store(http: httpx.Client, payload: str) -> None:
    body = f'{{"payload":{payload}}}'.encode()
    http.post(
        "/topics/orders/messages", content=body, headers={"Content-Type": "application/json"}
    ).raise_for_status()


def stored(http: httpx.Client) -> list[str]:
    """The payloads of the topic as the bytes that the log has."""
    text = http.get("/topics/orders/messages").text
    return [part.partition(',"headers":')[0] for part in text.split('"payload":')[1:]]


def test_a_payload_is_shown_and_copied_as_it_is_stored(reader: Page, http: httpx.Client) -> None:
    """The row, the details and the clipboard have the stored text, digit for digit."""
    for payload in CHANGED_BY_PARSING:
        store(http, payload)
    rows = reader.locator(".vrow:not([hidden]) .what")
    expect(rows).to_have_count(len(CHANGED_BY_PARSING))
    for number, payload in enumerate(CHANGED_BY_PARSING, start=1):
        row = reader.locator(f'.vrow:not([hidden])[aria-posinset="{number}"]')
        expect(row.locator(".what")).to_have_text(payload)
        row.click()
        details = reader.get_by_label("Selected record")
        assert "".join(details.locator(".payload").inner_text().split()) == payload
        assert copied_by(reader, "Copy payload") == payload
        assert f'"payload":{payload}' in "".join(copied_by(reader, "Copy record").split())


def copied_by(page: Page, button: str) -> str:
    page.evaluate("() => navigator.clipboard.writeText('')")
    page.get_by_role("button", name=button).click()
    page.wait_for_function("() => navigator.clipboard.readText()")
    return str(page.evaluate("() => navigator.clipboard.readText()"))


def test_a_payload_is_stored_as_it_was_typed(reader: Page, http: httpx.Client) -> None:
    """The publish form sends the text, not what a parser made of it."""
    reader.get_by_role("button", name="Publish…").click()
    for number, payload in enumerate(CHANGED_BY_PARSING):
        reader.get_by_label("Payload, JSON").fill(payload)
        reader.get_by_role("button", name="Publish", exact=True).click()
        expect(reader.get_by_text(f"Stored at offset {number}", exact=True)).to_be_visible()
    assert stored(http) == CHANGED_BY_PARSING


@pytest.mark.parametrize(
    "typed", ['1, "headers": {"a": "b"}', '{"a": 1', "01", "NaN", "", '1} {"payload": 2']
)
def test_what_is_not_one_json_value_is_not_sent(reader: Page, http: httpx.Client, typed: str) -> None:
    """Typed text cannot reach beyond the payload into the message around it."""
    reader.get_by_role("button", name="Publish…").click()
    reader.get_by_label("Payload, JSON").fill(typed)
    reader.get_by_role("button", name="Publish", exact=True).click()
    expect(reader.locator(".toast.bad")).to_contain_text("the payload is not JSON")
    assert stored(http) == []


def test_json_that_code_displays_is_shown_as_it_was_written(page: Page, kernel: LiveKernel) -> None:
    """Outputs of kernels are stored JSON too."""
    request = kernel.run(
        "display({'application/json': {'id': 9007199254740993, 'ratio': 60.0, 'big': 2**70}}, raw=True)"
    )["request_id"]
    page.goto(kernel.url)
    shown = page.locator(f'article[data-request="{request}"] .display')
    expect(shown).to_contain_text('"id": 9007199254740993')
    expect(shown).to_contain_text('"ratio": 60.0')
    expect(shown).to_contain_text('"big": 1180591620717411303424')


def test_indentation_agrees_with_another_implementation(page: Page, server: RunningServer) -> None:
    """For any document: indented as Python indents it, on one line as it is written compactly, found by its path."""
    goto(page, server)

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.lists(CANONICAL, min_size=1, max_size=25))
    def check(documents: list[Any]) -> None:
        wide = [json.dumps({"first": [1], "wanted": one}, separators=(" ,  ", "\t: ")) for one in documents]
        found = page.evaluate(
            """async (texts) => {
                const { onOneLine, pretty, textAt } = await import("/page/live/json_text.js");
                return texts.map((text) => textAt(text, "wanted")).map((text) => [pretty(text), onOneLine(text, 1e6)]);
            }""",
            wide,
        )
        assert found == [
            [json.dumps(one, indent=2), json.dumps(one, separators=(",", ":"))] for one in documents
        ]

    check()


def test_text_that_is_no_json_comes_out_as_it_is(page: Page, server: RunningServer) -> None:
    """A damaged payload is shown, and neither hangs the page nor fails it."""
    goto(page, server)
    broken = ['{"a": "no end', "[[[[", "}}}}", '"\\', "[" * 100_000, ',:,"a":']
    found = page.evaluate(
        """async (texts) => {
            const { pretty, onOneLine } = await import("/page/live/json_text.js");
            return texts.map((text) => [pretty(text), onOneLine(text, 1e6)]);
        }""",
        broken,
    )
    for text, shown in zip(broken, found, strict=True):
        for one in shown:
            assert "".join(one.split()) == "".join(text.split())
