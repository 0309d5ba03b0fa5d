"""A browser for the tests of the page, and servers for it to look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.page.browser import DEADLINE_MS, Complaints, running_browser
from tests.page.live_kernel import LiveKernel
from tests.servers import RunningServer
from tests.shared_kernel_server import kernel_server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For a module and no longer: while it is open, Playwright's event loop keeps other tests from having one."""
    with running_browser() as browser:
        expect.set_options(timeout=DEADLINE_MS)
        yield browser


@pytest.fixture
def new_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open pages, each in a browser profile of its own. They may not complain, unless the test takes that over."""
    contexts: list[BrowserContext] = []
    watched: list[Complaints] = []

    def open_page(*, complaints: bool = False, **options: Any) -> Page:
        options.setdefault("viewport", {"width": 1280, "height": 800})
        contexts.append(browser.new_context(**options))
        contexts[-1].set_default_timeout(DEADLINE_MS)
        page = contexts[-1].new_page()
        if not complaints:
            watched.append(Complaints(page))
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [text for one in watched for text in one.found] == []


@pytest.fixture
def page(new_page: Callable[..., Page]) -> Page:
    return new_page()


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx.Client]:
    with server.http() as client:
        yield client


@pytest.fixture(scope="package")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with kernels, for the whole folder: starting one takes a second."""
    with kernel_server(tmp_path_factory.mktemp("kernels")) as server:
        yield server


@pytest.fixture(scope="module")
def kernel(kernels: RunningServer) -> Iterator[LiveKernel]:
    """A real kernel for the tests of a module."""
    with LiveKernel(kernels) as started:
        yield started
