"""Executions, Pipeline and System, on a warehouse that was written without Spark."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from tests.page.browser import goto
from tests.page.warehouse import KERNELS, write_busy_hour
from tests.server.raw_clients import RawWebSocket, until
from tests.servers import RunningServer, start_server

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def tabled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with tables, and a log that the pipeline has read in part."""
    directory = tmp_path_factory.mktemp("tabled")
    write_busy_hour(directory / "warehouse")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HIMALIA_RUNTIME_DIR", str(directory / "runtime"))
        server = start_server(
            auth=False, kernels=False, log=f"sqlite://{directory}/log.db", warehouse=directory / "warehouse"
        )
    server.create("orders", "pipeline.positions")
    with server.http() as http:
        http.post("/topics/orders/messages", json=[{"payload": n} for n in range(100)])
        epoch = http.get("/topics").json()["topics"][0]["epoch"]
        told = {"positions": {"orders": {"offset": 88, "epoch": epoch}}}
        http.post("/topics/pipeline.positions/messages", json={"payload": told})
    yield server
    server.stop()


@pytest.fixture
def empty(serve: Callable[..., RunningServer], tmp_path: Path) -> RunningServer:
    return serve(auth=False, kernels=False, warehouse=tmp_path / "nothing")


# Executions


def test_executions_newest_first(page: Page, tabled: RunningServer) -> None:
    """Status, code, duration, kernel and error; more on demand."""
    goto(page, tabled, "#/executions")
    rows = page.locator(".executions tbody tr")
    expect(rows).to_have_count(100)
    expect(rows.first).to_contain_text("running")
    page.get_by_role("button", name="Show more").click()
    expect(rows).to_have_count(160)


@pytest.mark.parametrize(
    ("words", "status", "found"),
    [
        ("model.fit", "", 32),
        ("KEYERROR", "", 5),
        ("", "running", 1),
        ("load_orders 'n/a'", "error", 1),
        ("%", "", 0),
        ("' or 1=1 --", "", 0),
    ],
)
def test_executions_are_searched(
    page: Page, tabled: RunningServer, words: str, status: str, found: int
) -> None:
    """By words anywhere in code and errors, whatever they hold, and by status; the address keeps the search."""
    goto(page, tabled, "#/executions")
    page.get_by_label("Status").select_option(status)
    page.get_by_label("Search executions").fill(words)
    page.get_by_label("Search executions").press("Enter")
    if found:
        expect(page.locator(".executions tbody tr")).to_have_count(found)
    else:
        expect(page.get_by_text("No execution matches.")).to_be_visible()


def test_an_execution_that_the_log_has_lost(page: Page, tabled: RunningServer) -> None:
    """What the table kept of it is shown instead, and that it is so."""
    goto(page, tabled, f"#/kernels/{KERNELS[0]}/executions/request-4")
    expect(page.get_by_text("this is what the pipeline's table kept")).to_be_visible()
    expect(page.locator(".error-line")).to_contain_text("Error")


def test_before_the_pipeline_has_run(page: Page, empty: RunningServer) -> None:
    """Both sections say what to do."""
    for section in ("executions", "pipeline"):
        goto(page, empty, f"#/{section}")
        expect(page.get_by_text("The pipeline has not run yet.")).to_be_visible()


# Pipeline


def test_how_far_the_pipeline_is(page: Page, tabled: RunningServer) -> None:
    """Its lag behind the log, and what it has stored."""
    goto(page, tabled, "#/pipeline")
    tile = page.locator(".tile", has_text="Behind the log")
    expect(tile.locator(".tile-value")).to_have_text("12")
    expect(page.get_by_text("Most behind: orders 12")).to_be_visible()
    expect(page.get_by_role("row", name=re.compile("^executions"))).to_contain_text("160")
    expect(page.get_by_role("link", name="ValueError")).to_be_visible()


def test_charts_are_drawn_in_a_frame_of_their_own(page: Page, tabled: RunningServer) -> None:
    """Plotly draws four figures, in an origin that is not the page's."""
    goto(page, tabled, "#/pipeline")
    expect(page.locator("iframe.frame")).to_have_attribute("data-drawn", "4")
    plots = page.frame_locator("iframe.frame")
    expect(plots.locator(".gtitle", has_text="Messages a minute")).to_be_visible()
    expect(plots.locator(".js-plotly-plot")).to_have_count(4)
    assert page.evaluate("() => typeof Plotly") == "undefined"


def test_without_plotly_the_figures_are_tables(page: Page, tabled: RunningServer) -> None:
    """Nothing but the charts is missing, and it is said what to install."""

    def without_plotly(route: Route) -> None:
        html = route.fetch().text()
        route.fulfill(
            body=re.sub(r"<script>.*?</script>", "", html, count=1, flags=re.DOTALL), content_type="text/html"
        )

    page.route("**/page/plot.html", without_plotly)
    goto(page, tabled, "#/pipeline")
    expect(page.get_by_text("pip install 'himalia[page]'")).to_be_visible()
    expect(page.get_by_role("columnheader", name="p95")).to_be_visible()


# System


def test_how_the_server_is(page: Page, tabled: RunningServer) -> None:
    """Rates, commits, disk, versions, subscribers."""
    goto(page, tabled, "#/system")
    expect(page.get_by_text("Healthy")).to_be_visible()
    expect(page.locator(".tile", has_text="Commit time").locator(".tile-value")).to_contain_text("ms")
    expect(page.locator(".tile", has_text="Uptime")).to_contain_text("protocol 1")


def test_the_last_minute_of_the_server_is_there_at_once(
    page: Page, server: RunningServer, http: httpx.Client
) -> None:
    """Published and delivered are drawn from the first answer, with what came before the page was opened."""
    server.create("orders")
    with RawWebSocket(server) as viewer:
        viewer.ask(type="subscribe", topic="orders", client_id="v")
        http.post("/topics/orders/messages", json=[{"payload": one} for one in range(50)]).raise_for_status()
        until(lambda: sum(http.get("/stats").json()["last_minute"]["delivered"]) == 50)
    answers = iter([True])

    def only_once(route: Route) -> None:
        if next(answers, False):
            route.continue_()

    page.route("**/stats", only_once)
    goto(page, server, "#/system")
    for name in ("Published", "Delivered"):
        tile = page.locator(".tile").filter(has=page.get_by_role("heading", name=name, exact=True))
        expect(tile.locator(".tile-note")).to_have_text("50 since the start")
        points = str(tile.locator(".spark-line").get_attribute("points")).split()
        heights = [float(point.partition(",")[2]) for point in points]
        assert len(heights) == 60
        assert min(heights) < max(heights)


def test_what_health_complains_about_is_told_in_words(page: Page, tabled: RunningServer) -> None:
    """A log that cannot store is said first, with what to do."""
    sick = {
        "status": "degraded",
        "problem": "the disk is full; free some space",
        "version": "0",
        "protocol": 1,
    }
    page.route("**/health", lambda route: route.fulfill(status=503, body=json.dumps(sick)))
    goto(page, tabled, "#/system")
    expect(page.locator(".verdict.bad")).to_contain_text(
        "The log cannot store.the disk is full; free some space"
    )
