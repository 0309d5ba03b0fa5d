"""A real browser: Debian's Chromium, driven by Playwright."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, sync_playwright

DEADLINE_MS = 20_000
MISSING = "Chromium is not installed, so the page cannot be tested: apt-get install chromium"


def chromium_path() -> str:
    """Where it is; else the test is skipped, and fails where nothing may be skipped."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    return found


@contextmanager
def running_browser() -> Iterator[Browser]:
    path = chromium_path()
    with sync_playwright() as playwright:
        # Chromium's own sandbox does not work for root, which containers run as.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        yield browser
        browser.close()


class Complaints:
    """What a page complained of: errors that nobody caught, and what it wrote as an error."""

    def __init__(self, page: Page) -> None:
        self.found: list[str] = []
        page.on("pageerror", lambda error: self.found.append(str(error)))
        page.on("console", self._heard)

    def _heard(self, message: ConsoleMessage) -> None:
        # The browser itself reports each failed request; that is the server's answer, not the page's fault.
        is_network = "Failed to load resource" in message.text or "WebSocket connection to" in message.text
        if message.type == "error" and not is_network:
            self.found.append(message.text)


def rows_shown(page: Page) -> list[str]:
    """All rows of the open topic, read by scrolling from the first to the last: the offset of a record, or a notice."""
    shown: list[str] = page.evaluate(
        """async () => {
            const list = document.querySelector(".vlist");
            const seen = new Map();
            const frame = () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
            for (let top = 0; ; top += list.clientHeight) {
                for (let tries = 0; tries < 20; tries++) {
                    list.dispatchEvent(new WheelEvent("wheel", {deltaY: -1})); // by hand
                    list.scrollTop = top;
                    await frame();
                    // A list that still follows its end, because rows came just now, has moved away again.
                    if (Math.abs(list.scrollTop - Math.min(top, list.scrollHeight - list.clientHeight)) < 2) break;
                }
                for (const row of list.querySelectorAll(".vrow:not([hidden])")) {
                    const text = row.querySelector(".offset, .notice")?.textContent;
                    if (text) seen.set(Number(row.getAttribute("aria-posinset")), text);
                }
                if (top + list.clientHeight >= list.scrollHeight) break;
            }
            return [...seen].sort(([a], [b]) => a - b).map(([, text]) => text);
        }"""
    )
    return shown


def offsets_shown(page: Page) -> list[int]:
    """The offsets of all records of the open topic that are shown."""
    texts = (text.replace(",", "") for text in rows_shown(page))
    return [int(text) for text in texts if text.isdecimal()]


def row_with(page: Page, text: str | re.Pattern[str]) -> Locator:
    return page.locator(".vrow:not([hidden])", has_text=text)


def goto(page: Page, server: Any, address: str = "") -> None:
    page.goto(f"{server.url}/{address}")
