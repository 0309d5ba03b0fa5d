"""The filter of a topic searches the log, not only what the page has at hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, Request, Route, expect

from tests.page.browser import goto, offsets_shown, row_with
from tests.servers import RunningServer

pytestmark = pytest.mark.slow

COUNT = 20_000
NEEDLES = [7, 4_321, 19_990]


@pytest.fixture
def haystack(server: RunningServer, http: httpx.Client) -> str:
    """A topic with 20,000 records, of which three are large orders."""
    server.create("orders")
    totals = [1000 + offset if offset in NEEDLES else offset % 100 for offset in range(COUNT)]
    for start in range(0, COUNT, 5000):
        publish(http, *({"total": total} for total in totals[start : start + 5000]))
    return "orders"


def publish(http: httpx.Client, *payloads: Any) -> None:
    http.post("/topics/orders/messages", json=[{"payload": one} for one in payloads]).raise_for_status()


def search(page: Page, server: RunningServer, filter: str, place: str = "") -> None:
    goto(page, server, f"#/topics/orders?{place}filter={filter.replace(' ', '%20')}")


class Held:
    """Lets so many pages of a search through, and holds the rest."""

    def __init__(self, page: Page, let_through: int) -> None:
        self.left = let_through
        self._held: list[Route] = []
        page.route("**/messages?*", self._on_request)

    def _on_request(self, route: Route) -> None:
        if self.left:
            self.left -= 1
            route.continue_()
        else:
            self._held.append(route)

    def release(self) -> None:
        self.left = 1_000_000
        for route in self._held:
            route.continue_()


def test_a_filter_finds_what_is_far_back(
    page: Page, server: RunningServer, http: httpx.Client, haystack: str
) -> None:
    """Everything kept is searched, the newest first; what comes meanwhile is shown below."""
    search(page, server, "message.payload.total >= 1000")
    expect(page.locator(".status-line")).to_contain_text("Searched all 20,000 kept records; 3 found")
    publish(http, {"total": 5000}, {"total": 1})
    expect(row_with(page, re.compile("^20,000"))).to_be_visible()
    assert offsets_shown(page) == [*NEEDLES, 20_000]


def test_it_says_how_far_it_has_come(page: Page, server: RunningServer, haystack: str) -> None:
    """After one window of 1,000 records one is found; nothing is said of those that were not searched."""
    held = Held(page, 1)
    search(page, server, "message.payload.total >= 1000")
    place = page.locator(".status-line")
    expect(place).to_contain_text("Searched back to offset 19,000 of 0 to 20,000; 1 found")
    held.release()
    expect(place).to_contain_text("Searched all 20,000 kept records; 3 found")


def test_nothing_matches_is_said_only_when_all_was_searched(
    page: Page, server: RunningServer, haystack: str
) -> None:
    held = Held(page, 2)
    search(page, server, "message.payload.total > 100000")
    place = page.locator(".status-line")
    expect(place).to_contain_text(re.compile(r"Searched back to offset \d\d,000 of 0 to 20,000; 0 found"))
    expect(place).not_to_contain_text("No record matches")
    held.release()
    expect(place).to_contain_text("No record matches · Searched all 20,000 kept records; 0 found")


def test_a_search_can_be_stopped_and_go_on(page: Page, server: RunningServer, haystack: str) -> None:
    """Stopped, it asks the server nothing more; going on, it finds the rest and nothing twice."""
    held = Held(page, 1)
    search(page, server, "message.payload.total >= 1000")
    place = page.locator(".status-line")
    expect(place).to_contain_text("Searched back to offset 19,000")
    page.get_by_role("button", name="Stop", exact=True).click()
    expect(place).to_contain_text("Stopped: searched back to offset 19,000 of 0 to 20,000; 1 found")
    held.release()
    page.get_by_role("button", name="Continue search").click()
    expect(place).to_contain_text("Searched all 20,000 kept records; 3 found")
    assert offsets_shown(page) == NEEDLES


def test_very_many_matches_come_a_part_at_a_time(page: Page, server: RunningServer, haystack: str) -> None:
    """A search pauses when it has found enough, so that the page's memory is bounded."""
    search(page, server, "message.payload.total >= 0")
    place = page.locator(".status-line")
    expect(place).to_contain_text(re.compile(r"Stopped: searched back to offset 19,000 .*there may be more"))
    assert offsets_shown(page) == list(range(19_000, 20_000))
    page.get_by_role("button", name="Continue search").click()
    expect(place).to_contain_text(re.compile(r"Stopped: searched back to offset 18,\d00 .*there may be more"))
    shown = offsets_shown(page)
    assert shown == list(range(shown[0], 20_000))


def test_large_records_are_read_in_smaller_parts(
    page: Page, server: RunningServer, http: httpx.Client
) -> None:
    """An answer that would not fit into memory is given up, and asked for in parts."""
    server.create("orders")
    for _ in range(6):
        publish(http, *(["x" * 900_000, number] for number in range(4)))
    answers: list[Request] = []
    page.on("requestfinished", lambda one: answers.append(one) if "/messages?" in one.url else None)
    search(page, server, "message.payload[1] >= 0")
    expect(page.locator(".status-line")).to_contain_text("Searched all 24 kept records; 24 found")
    assert offsets_shown(page) == list(range(24))
    assert len(answers) > 2
    assert all(one.sizes()["responseBodySize"] < 9_000_000 for one in answers)


def test_a_jump_searches_on_from_there(
    page: Page, server: RunningServer, http: httpx.Client, haystack: str
) -> None:
    """In the past the filter is searched for forward, to the end, and then in what comes."""
    search(page, server, "message.payload.total >= 1000", place="from=100&")
    expect(page.locator(".status-line")).to_contain_text("Searched to the end; 2 found")
    publish(http, {"total": 1}, {"total": 7000})
    expect(row_with(page, re.compile("^20,001"))).to_be_visible()
    assert offsets_shown(page) == [*NEEDLES[1:], 20_001]


def test_what_retention_took_is_not_searched(page: Page, serve: Callable[..., RunningServer]) -> None:
    """All that is kept is less then, and that is what is said."""
    server = serve(auth=False, kernels=False, log="memory://")
    server.create("orders", count=2500)
    with server.http() as http:
        publish(http, *({"total": total} for total in range(10_000)))
    search(page, server, "message.payload.total % 1000 == 999")
    expect(page.locator(".status-line")).to_contain_text("Searched all 2,500 kept records; 3 found")
    assert offsets_shown(page) == [7999, 8999, 9999]


def test_a_filter_that_fails_says_on_how_many(page: Page, server: RunningServer, http: httpx.Client) -> None:
    server.create("orders")
    publish(http, {"total": 5}, "text", {"total": 7}, {})
    search(page, server, "message.payload.total > 6")
    expect(page.locator(".status-line")).to_contain_text("1 found; the filter failed on 2 records")
    assert offsets_shown(page) == [2]


def test_rows_stay_in_sight_while_earlier_ones_are_found(
    new_page: Callable[..., Page], server: RunningServer, haystack: str
) -> None:
    """Whoever reads is not carried away by what the search finds."""
    page = new_page()
    held = Held(page, 1)
    search(page, server, "offset % 10 == 0")
    expect(page.locator(".status-line")).to_contain_text("Searched back to offset 19,000")
    page.locator(".vlist").hover()
    page.mouse.wheel(0, -900)
    expect(page.get_by_text("Paused")).to_be_visible()
    before = first_in_sight(page)
    held.release()
    expect(page.locator(".status-line")).to_contain_text("there may be more")
    assert first_in_sight(page) == before


def first_in_sight(page: Page) -> str:
    found: str = page.evaluate(
        """async () => {
            const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
            await frame();
            const list = document.querySelector(".vlist");
            const top = list.getBoundingClientRect().top;
            const topOf = (row) => row.getBoundingClientRect().top;
            const rows = [...list.querySelectorAll(".vrow:not([hidden])")].filter((row) => topOf(row) >= top);
            rows.sort((a, b) => topOf(a) - topOf(b));
            return rows[0].querySelector(".offset").textContent;
        }"""
    )
    return found
