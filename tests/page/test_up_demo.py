"""``himalia up --demo`` with all that belongs to it, server, kernel and Spark, looked at in a browser."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.cli.up_process import UpProcess, assert_all_gone
from tests.docs.test_readme import assert_first_commands_pass

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

ALIVE_S = 280.0
TRAINED_MS = 40_000
"""Until the kernel has started and the training, of which one can watch every step, is over."""
FILLED_MS = 150_000
"""Until the tables are there: Spark starts, on a machine that does other things too."""
ABOVE_0 = re.compile(r"^[1-9]")


@pytest.fixture(scope="module")
def demo(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UpProcess]:
    """All of it, once for the module. Not without a browser, which is asked for first."""
    directory = tmp_path_factory.mktemp("demo")
    env = {
        "HIMALIA_RUNTIME_DIR": str(directory / "runtime"),
        "HIMALIA_WAREHOUSE": str(directory / "warehouse"),
        "JUPYTER_RUNTIME_DIR": str(directory / "jupyter"),
    }
    with UpProcess(directory, "--demo", env=env, deadline_s=ALIVE_S) as up:
        yield up


@pytest.fixture
def look(page: Page, demo: UpProcess) -> Callable[[str], Page]:
    """The page at one of its addresses, opened as the printed address says."""
    page.goto(f"{demo.url}/?token={demo.token}")

    def at(address: str) -> Page:
        page.goto(f"{demo.url}/{address}")
        return page

    return at


def cell(page: Page, title: str) -> Locator:
    """The first cell that runs the code with this title."""
    return page.locator("article.cell", has_text=title).first


def number_in(place: Locator) -> int:
    return int(place.inner_text().replace(",", ""))


def execution(page: Page, title: str) -> Locator:
    return page.locator(".executions tbody tr", has_text=title).first


def test_orders_come_in(look: Callable[[str], Page]) -> None:
    """Topics shows the orders with a rate, and there are more and more of them."""
    page = look("#/topics")
    row = page.get_by_role("row", name=re.compile("^demo.orders"))
    expect(row).to_contain_text(re.compile(r"\d+\.\d/s"))
    expect(row.locator("td.number").nth(1)).to_have_text(ABOVE_0)
    before = number_in(row.locator("td.number").nth(1))
    expect(row.locator("td.number").nth(1)).not_to_have_text(f"{before:,}")
    assert number_in(row.locator("td.number").nth(1)) > before


def test_an_open_topic_is_followed(look: Callable[[str], Page]) -> None:
    """An order that is published while somebody looks is shown to them."""
    page = look("#/topics/demo.orders")
    newest = page.locator(".vrow:not([hidden]) .offset").last
    expect(newest).to_be_visible()
    seen = newest.inner_text()
    expect(newest).not_to_have_text(seen)
    expect(page.locator(".vrow:not([hidden])").last).to_contain_text('"sku"')


def test_the_kernel_can_be_watched(look: Callable[[str], Page]) -> None:
    """From Kernels to its console: the training's progress in one line, its plot in a frame, the failure folded."""
    page = look("#/kernels")
    page.get_by_role("link", name="Open console").click()
    training = cell(page, "# Learn how the days come about")
    expect(training.locator(".terminal")).to_contain_text("40/40  loss", timeout=TRAINED_MS)
    expect(training.locator(".terminal")).to_contain_text(
        re.compile(r"days = 0\.\d+ \+ 0\.\d+ for each 100 km")
    )
    assert len(training.locator(".terminal").inner_text().splitlines()) == 2
    plot = cell(page, "# How the loss fell").frame_locator("iframe.frame")
    expect(plot.locator("svg polyline")).to_be_visible()
    failed = cell(page, "# A mistake")
    expect(failed).to_have_attribute("data-status", "error")
    expect(failed.locator("summary")).to_contain_text("KeyError: 'weight'")


def test_executions_are_in_the_pipelines_table(look: Callable[[str], Page]) -> None:
    """What went well and what failed, each with its status; opened, each has its output."""
    page = look("#/executions")
    failed = execution(page, "# A mistake")
    expect(failed.locator(".badge")).to_have_text("error", timeout=FILLED_MS)
    expect(failed).to_contain_text("KeyError")
    expect(execution(page, "# A burst of output").locator(".badge")).to_have_text("ok")
    execution(page, "# A burst of output").get_by_role("link").first.click()
    expect(page.locator(".terminal")).to_contain_text("delivery 1999:")
    page.go_back()
    execution(page, "# A mistake").get_by_role("link").first.click()
    expect(page.locator("article.cell summary")).to_contain_text("KeyError: 'weight'")


def test_the_pipeline_follows_the_log(look: Callable[[str], Page]) -> None:
    """How far it is behind, rows in each table, and figures of them."""
    page = look("#/pipeline")
    expect(page.get_by_role("row", name=re.compile("^executions"))).to_be_visible(timeout=FILLED_MS)
    expect(page.locator(".tile", has_text="Behind the log").locator(".tile-value")).to_have_text(
        re.compile(r"^[\d,]+$")
    )
    expect(page.locator(".tile", has_text="Last read").locator(".tile-value")).to_have_text(
        re.compile("ago$|^just now$")
    )
    for table in ("messages", "iopub", "executions", "topic_activity", "kernel_health", "errors"):
        row = page.get_by_role("row", name=re.compile(f"^{table} "))
        expect(row.locator("td.number").first).to_have_text(ABOVE_0, timeout=FILLED_MS)
    stored = page.locator(".tile", has_text="Records stored").locator(".tile-value")
    before = number_in(stored)
    expect(stored).not_to_have_text(f"{before:,}", timeout=FILLED_MS)
    assert number_in(stored) > before
    expect(page.locator("iframe.frame")).to_have_attribute("data-drawn", "4")


def test_the_readmes_first_commands_pass_beside_it(demo: UpProcess) -> None:
    """``orders`` is the reader's own topic, and --once waits for the pipeline that runs."""
    assert_first_commands_pass(demo)


def test_the_system_is_well(look: Callable[[str], Page]) -> None:
    """The log stores and delivers, and one kernel runs."""
    page = look("#/system")
    expect(page.get_by_text("Healthy")).to_be_visible()
    expect(page.locator(".facts-grid div", has_text="Kernels").locator("dd")).to_have_text("1")


def test_ctrl_c_ends_all_of_it(demo: UpProcess) -> None:
    """Server, kernel, pipeline and Java: none of them is left, and nothing was wrong."""
    family = demo.family()
    assert demo.part("org.apache.spark") and demo.part("keeper/launcher.py")
    demo.signal(signal.SIGINT)
    assert demo.end() == 0
    assert_all_gone(family)
    assert demo.errors() == ""
