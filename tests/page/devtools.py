"""A browser that is only looked at, for what Playwright would disturb.

Playwright has Chromium report every WebSocket frame to it. In a flood that takes more of the processor than the page
does, so a page's speed is measured by a browser that reports nothing but what it is asked for.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

from tests.page.browser import DEADLINE_MS, chromium_path

DEADLINE_S = DEADLINE_MS / 1000


class LookedAt:
    """The one page of a Chromium, asked through its DevTools protocol."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while (answer := json.loads(self._socket.recv(DEADLINE_S))).get("id") != number:
            pass
        assert "error" not in answer, answer["error"]
        return dict(answer["result"])

    def evaluate(self, expression: str) -> Any:
        """What an expression gives, once it is there if it is a promise."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def goto(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def until(self, condition: str) -> None:
        """Wait for an expression to hold."""
        deadline = time.monotonic() + DEADLINE_S
        while not self.evaluate(condition):
            assert time.monotonic() < deadline, f"not in time: {condition}"
            time.sleep(0.05)

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


@contextmanager
def looked_at(profile: Path) -> Iterator[LookedAt]:
    """A browser of its own, which ends with the block."""
    flags = [
        "--headless",
        "--remote-debugging-port=0",
        f"--user-data-dir={profile}",
        "--window-size=1280,800",
    ]
    if os.geteuid() == 0:
        flags.append("--no-sandbox")
    process = subprocess.Popen(
        [chromium_path(), *flags, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        with connect(_address(profile / "DevToolsActivePort"), max_size=None) as socket:
            yield LookedAt(socket)
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def _address(told: Path) -> str:
    deadline = time.monotonic() + DEADLINE_S
    while not (told.exists() and told.read_text().count("\n")):
        assert time.monotonic() < deadline, "Chromium did not start"
        time.sleep(0.05)
    port = told.read_text().splitlines()[0]
    pages = httpx.get(f"http://127.0.0.1:{port}/json/list").raise_for_status().json()
    return next(str(page["webSocketDebuggerUrl"]) for page in pages if page["type"] == "page")
