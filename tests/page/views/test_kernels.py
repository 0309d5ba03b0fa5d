"""Kernels that something else started: attached in the page, watched there, and let go."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from jupyter_client.manager import KernelManager
from playwright.sync_api import Locator, Page, expect

from tests.page.browser import goto
from tests.servers import DEADLINE_S, RunningServer

pytestmark = pytest.mark.slow


@pytest.fixture
def foreign(kernels: RunningServer, tmp_path: Path) -> Iterator[KernelManager]:
    """A kernel that Jupyter started, in its own runtime directory, and that answers."""
    directory = Path(kernels.settings.log.removeprefix("sqlite://")).parent / "jupyter"
    manager = KernelManager(connection_file=str(directory / f"kernel-{tmp_path.name}.json"))
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=DEADLINE_S)
        yield manager
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def attach(page: Page, file: str) -> None:
    page.get_by_text("Attach…").click()
    page.get_by_label("Connection file of a kernel that something else started").fill(file)
    page.get_by_role("button", name="Attach", exact=True).click()


def let_go(card: Locator) -> None:
    card.get_by_role("button", name="Detach").click()
    card.get_by_role("button", name="Stop listening?").click()


def test_a_foreign_kernel_is_attached_watched_and_let_go(
    page: Page, kernels: RunningServer, foreign: KernelManager
) -> None:
    """What others make it say is in its console, code runs on it, and letting it go does not end it."""
    goto(page, kernels, "#/kernels")
    attach(page, foreign.connection_file)
    card = page.locator(".kernel-card", has_text="attached")
    expect(card).to_be_visible()
    expect(card.get_by_role("button", name="Restart")).to_have_count(0)
    card.get_by_role("link", name="Open console").click()
    expect(page.locator(".console[data-ready]")).to_be_visible()

    other = foreign.client()
    other.start_channels()
    other.execute("print('said to somebody else')")
    expect(page.locator("article.cell .terminal")).to_have_text("said to somebody else")
    other.stop_channels()
    page.get_by_label("Code to run").fill("6 * 7")
    page.get_by_label("Code to run").press("Enter")
    expect(page.locator("article.cell .display")).to_have_text("42")

    goto(page, kernels, "#/kernels")
    let_go(card)
    expect(card).to_have_count(0)
    assert foreign.is_alive()


def test_all_of_jupyters_kernels(page: Page, kernels: RunningServer, foreign: KernelManager) -> None:
    """Without a name every kernel that answers is attached, and it is told how many were passed over."""
    broken = Path(foreign.connection_file).with_name("kernel-broken.json")
    broken.write_text("{}")
    goto(page, kernels, "#/kernels")
    attach(page, "")
    expect(page.get_by_text("1 kernel attached, 1 skipped")).to_be_visible()
    card = page.locator(".kernel-card", has_text="attached")
    let_go(card)
    expect(card).to_have_count(0)
    broken.unlink()


def test_a_file_that_is_not_there(page: Page, kernels: RunningServer) -> None:
    """What cannot be attached is told in the server's words."""
    goto(page, kernels, "#/kernels")
    attach(page, "kernel-nowhere.json")
    expect(page.locator(".toast.bad")).to_contain_text("kernel-nowhere.json")
