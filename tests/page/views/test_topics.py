"""Topics: the list, and one topic with its records."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from tests.page.browser import goto, offsets_shown, row_with
from tests.server.raw_clients import until
from tests.servers import RunningServer

pytestmark = pytest.mark.slow


@pytest.fixture
def orders(server: RunningServer, http: httpx.Client) -> str:
    """A topic with the records 0 to 49."""
    server.create("orders")
    publish(http, "orders", *range(50))
    return "orders"


def publish(http: httpx.Client, topic: str, *payloads: Any) -> None:
    http.post(f"/topics/{topic}/messages", json=[{"payload": one} for one in payloads]).raise_for_status()


def test_the_list_is_live(page: Page, server: RunningServer, http: httpx.Client, orders: str) -> None:
    """Topics appear when they are made, and their counts follow."""
    goto(page, server)
    row = page.locator('tr[data-topic="orders"]')
    expect(row.locator("td").nth(2)).to_have_text("50")
    publish(http, orders, *range(1000))
    expect(row.locator("td").nth(2)).to_have_text("1,050")
    server.create("refunds")
    expect(page.locator('tr[data-topic="refunds"]')).to_be_visible()


def test_the_last_minute_is_there_at_once(
    page: Page, server: RunningServer, http: httpx.Client, orders: str
) -> None:
    """The server keeps it: a page that has just been opened draws it from its first answer."""
    until(lambda: sum(http.get("/stats").json()["topics"][orders]["last_minute"]) == 50)
    answers = iter([True])

    def only_once(route: Route) -> None:
        if next(answers, False):
            route.continue_()

    page.route("**/stats", only_once)
    goto(page, server)
    minute = page.locator('tr[data-topic="orders"] .spark-cell')
    expect(minute).to_have_attribute("title", "50 messages in the last minute")
    points = str(minute.locator(".spark-line").get_attribute("points")).split()
    heights = {float(point.partition(",")[2]) for point in points}
    assert (len(points), len(heights)) == (60, 2)


def test_records_come_as_they_are_published(
    page: Page, server: RunningServer, http: httpx.Client, orders: str
) -> None:
    """The newest first seen, then each that comes, in order and once."""
    goto(page, server, "#/topics/orders")
    expect(row_with(page, re.compile("^49"))).to_be_visible()
    publish(http, orders, {"sku": "A-17"}, {"sku": "B-2"})
    expect(row_with(page, '{"sku":"B-2"}')).to_be_visible()
    assert offsets_shown(page) == list(range(52))


def test_paused_it_holds_its_place_and_goes_on_there(
    page: Page, server: RunningServer, http: httpx.Client, orders: str
) -> None:
    """What comes meanwhile stays in the log and is not fetched; going on begins exactly behind what was shown."""
    goto(page, server, "#/topics/orders")
    expect(row_with(page, re.compile("^49"))).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    publish(http, orders, *range(30))
    expect(page.get_by_text("30 more in the log")).to_be_visible()
    page.get_by_role("button", name="Go live").click()
    expect(row_with(page, re.compile("^79"))).to_be_visible()
    assert offsets_shown(page) == list(range(80))


def test_scrolling_up_pauses(page: Page, server: RunningServer, orders: str) -> None:
    """Whoever reads is not carried away by what comes."""
    goto(page, server, "#/topics/orders")
    expect(row_with(page, re.compile("^49"))).to_be_visible()
    page.locator(".vlist").hover()
    page.mouse.wheel(0, -300)
    expect(page.get_by_text("Paused")).to_be_visible()


def test_jump_to_an_offset(page: Page, server: RunningServer, http: httpx.Client, orders: str) -> None:
    """It begins there; further pages come as one scrolls, without a gap or a repeat."""
    publish(http, orders, *range(1500))
    goto(page, server, "#/topics/orders")
    page.get_by_label("Jump to an offset or a time").fill("20")
    page.get_by_role("button", name="Jump").click()
    expect(row_with(page, re.compile("^20"))).to_be_visible()
    expect(page.get_by_text("In the past")).to_be_visible()
    for length in (1000, 1500):
        page.locator(".vlist").evaluate("element => { element.scrollTop = element.scrollHeight; }")
        expect(page.locator(f'.vrow:not([hidden])[aria-setsize="{length}"]').first).to_be_visible()
    assert offsets_shown(page)[:1500] == list(range(20, 1520))


def test_jump_to_a_time(page: Page, server: RunningServer, http: httpx.Client, orders: str) -> None:
    """The first record that is not older comes first."""
    publish(http, orders, "later")
    [record] = http.get("/topics/orders/messages", params={"last": 1}).json()["messages"]
    goto(page, server, "#/topics/orders")
    page.get_by_label("Jump to an offset or a time").fill(record["ts"])
    page.get_by_role("button", name="Jump").click()
    # The browser's times have milliseconds, so a few records of the same one may come before.
    expect(row_with(page, '"later"')).to_be_visible()
    expect(page.get_by_text("In the past")).to_be_visible()


def test_a_filter_in_cel(page: Page, server: RunningServer, http: httpx.Client, orders: str) -> None:
    """Only what matches is shown, also of what comes later; the address keeps the filter."""
    goto(page, server, "#/topics/orders")
    field = page.get_by_label("Filter, an expression in CEL")
    field.fill("offset % 10 == 3")
    field.press("Enter")
    expect(row_with(page, re.compile("^43"))).to_be_visible()
    publish(http, orders, *range(10))
    expect(row_with(page, re.compile("^53"))).to_be_visible()
    assert offsets_shown(page) == [3, 13, 23, 33, 43, 53]
    assert "filter=" in page.url


def test_a_filter_that_is_not_cel(page: Page, server: RunningServer, orders: str) -> None:
    """The server's own sentence says what is wrong with it."""
    goto(page, server, "#/topics/orders?filter=payload.total")
    expect(page.locator(".complaint")).to_contain_text("the filter names payload")


def test_publish_and_copy(new_page: Callable[..., Page], server: RunningServer, orders: str) -> None:
    """What is published comes back as a record, and can be copied as it was."""
    page = new_page(permissions=["clipboard-read", "clipboard-write"])
    goto(page, server, "#/topics/orders")
    page.get_by_role("button", name="Publish…").click()
    page.get_by_label("Payload, JSON").fill('{"sku": "<b>A</b>", "total": 120}')
    page.get_by_label("Headers, JSON").fill('{"source": "page"}')
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.get_by_text("Stored at offset 50")).to_be_visible()
    row_with(page, "<b>A</b>").click()
    details = page.get_by_label("Selected record")
    expect(details).to_contain_text("source")
    details.get_by_role("button", name="Copy payload").click()
    expect(page.get_by_text("Copied")).to_be_visible()
    copied = page.evaluate("() => navigator.clipboard.readText()")
    assert json.loads(copied) == {"sku": "<b>A</b>", "total": 120}


def test_a_gap_is_a_row(page: Page, server: RunningServer, http: httpx.Client) -> None:
    """An offset that retention has removed is shown as a gap, and delivery begins at the oldest record kept."""
    server.create("short", count=10)
    for _ in range(5):
        publish(http, "short", *range(10))
    until(lambda: http.get("/stats").json()["topics"]["short"]["first"] == 40)
    goto(page, server, "#/topics/short?from=3")
    expect(row_with(page, "Gap: offset 3 is not in the log, which continues at 40")).to_be_visible()
    expect(page.locator('.vrow:not([hidden])[aria-setsize="11"]').first).to_be_visible()
    assert offsets_shown(page) == list(range(40, 50))


def test_a_jump_beyond_the_end_waits_there(
    page: Page, server: RunningServer, http: httpx.Client, orders: str
) -> None:
    """No earlier record is shown; the page says what it waits for, and begins when the log reaches the offset."""
    goto(page, server, "#/topics/orders")
    page.get_by_label("Jump to an offset or a time").fill("55")
    page.get_by_role("button", name="Jump").click()
    expect(page.get_by_text("Waiting for offset 55; the topic ends at 50")).to_be_visible()
    publish(http, orders, *range(7))
    expect(row_with(page, re.compile("^56"))).to_be_visible()
    assert offsets_shown(page) == [55, 56]


def test_go_live_from_beyond_the_end_shows_the_newest(page: Page, server: RunningServer, orders: str) -> None:
    """Going live from an offset that the log has not reached shows what is there, not an empty page."""
    goto(page, server, "#/topics/orders?from=9999")
    expect(page.get_by_text("Waiting for offset 9,999")).to_be_visible()
    page.get_by_role("button", name="Go live").click()
    expect(row_with(page, re.compile("^49"))).to_be_visible()


def test_a_topic_that_is_deleted_says_so(
    page: Page, server: RunningServer, http: httpx.Client, orders: str
) -> None:
    goto(page, server, "#/topics/orders")
    expect(row_with(page, re.compile("^49"))).to_be_visible()
    http.delete("/topics/orders")
    expect(row_with(page, "The topic was deleted.")).to_be_visible()


def test_create_and_delete(page: Page, server: RunningServer) -> None:
    """Deleting asks once more."""
    goto(page, server)
    page.get_by_label("Name of a new topic").fill("fresh")
    page.get_by_role("button", name="Create").click()
    expect(page.get_by_role("heading", name="fresh")).to_be_visible()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("button", name="Delete all records?").click()
    expect(page.get_by_text("There are no topics yet.")).to_be_visible()
