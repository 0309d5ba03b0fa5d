"""What others wrote can be looked at. It can never act: not in the page's origin, not on the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from playwright.sync_api import Frame, Locator, Page, Request, expect

from tests.page.browser import goto, row_with
from tests.page.live_kernel import LiveKernel
from tests.servers import RunningServer

pytestmark = pytest.mark.slow

# Each tries to leave a mark on every window it can reach, and to make a topic on the server.
MARK = "top.pwned=1;parent.pwned=1;window.pwned=1;fetch('/topics',{method:'POST',body:'{\\\"name\\\":\\\"pwned\\\"}'})"
HOSTILE = {
    "script": f"<script>{MARK}</script>",
    "handler": f'<img src="data:," onerror="{MARK}">',
    "link": f'<a id="link" href="javascript:{MARK}">click me</a>',
    "top-link": '<a id="top" target="_top" href="/?away">click me</a>',
    "nested": f'<iframe srcdoc="<script>{MARK}</script>"></iframe>',
    "self": '<iframe src="/"></iframe><object data="/"></object><embed src="/">',
    "refresh": '<meta http-equiv="refresh" content="0;url=/?away">',
    "base": '<base href="https://elsewhere.example/"><link rel="stylesheet" href="x.css">',
    "form": f'<form action="/topics" method="post"><button id="send" onclick="{MARK}">send</button></form>',
    "style": "<style>@import url(https://elsewhere.example/x.css); * { background: url(/stats) }</style>",
    "svg": f'<svg onload="{MARK}"><script>{MARK}</script><animate onbegin="{MARK}" attributeName="x" dur="1s"/></svg>',
    "foreign": f'<svg><foreignObject><img src="data:," onerror="{MARK}"></foreignObject></svg>',
    "out-of-its-place": f"</div></body></html><script>{MARK}</script>",
}
LOOKS_LIKE_HTML = f'<img src=x onerror="{MARK}"><script>{MARK}</script>'


class Watched:
    """A page that shows hostile things, and what came of it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.dialogs: list[str] = []
        self.addresses: list[str] = []
        page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))
        page.on("requestfinished", lambda request: self.addresses.append(request.url))
        page.on("requestfailed", self._failed)

    def _failed(self, request: Request) -> None:
        # What the policy refuses never left the browser.
        if request.failure != "csp":
            self.addresses.append(request.url)

    def check(self, server: RunningServer) -> None:
        """Nothing was done: no mark, no dialogue, no request that the page itself would not make."""
        assert self.page.evaluate("() => window.pwned") is None
        assert self.dialogs == []
        assert [url for url in self.addresses if not url.startswith((server.url, "data:", "blob:"))] == []
        assert [url for url in self.addresses if url.endswith(("/?away", "x.css"))] == []
        with server.http() as http:
            names = [topic["name"] for topic in http.get("/topics").json()["topics"]]
        assert "pwned" not in names


@pytest.fixture
def watched(new_page: Callable[..., Page]) -> Watched:
    # The browser reports each thing that a policy refused: here that is the point.
    return Watched(new_page(complaints=True))


def frame_of(place: Locator) -> Frame:
    handle = place.element_handle()
    assert handle is not None
    frame = handle.content_frame()
    assert frame is not None
    return frame


@pytest.mark.parametrize("form", ["text/html", "image/svg+xml"])
def test_hostile_output_does_nothing(watched: Watched, kernel: LiveKernel, form: str) -> None:
    """Shown in frames without an origin, in which nothing runs that did not come with them."""
    outputs = [html + f'<p id="end">{name}</p>' for name, html in HOSTILE.items()]
    code = f"for html in {outputs!r}:\n    display({{{form!r}: html}}, raw=True)"
    request = kernel.run(code)["request_id"]
    page = watched.page
    page.goto(f"{kernel.server.url}/#/kernels/{kernel.id}/executions/{request}")
    for number, name in enumerate(HOSTILE):
        place = page.locator("iframe.frame").nth(number)
        place.scroll_into_view_if_needed()
        inside = page.frame_locator("iframe.frame").nth(number)
        expect(inside.locator("#end")).to_have_text(name)
        for link in ("#link", "#top", "#send"):
            if inside.locator(link).count():
                inside.locator(link).click()
        frame = frame_of(place)
        assert frame.evaluate("() => [self.origin, window.pwned ?? null]") == ["null", None]
        expect(inside.locator("#end")).to_have_text(name)  # it has not been led away
    assert page.evaluate("() => location.search") == ""
    watched.check(kernel.server)


def test_a_frame_reaches_nothing(watched: Watched, kernel: LiveKernel) -> None:
    """Even if a script did run in it: no parent, no cookie, no storage, no server, no socket."""
    request = kernel.run("display({'text/html': '<p id=end>the end</p>'}, raw=True)")["request_id"]
    watched.page.goto(f"{kernel.server.url}/#/kernels/{kernel.id}/executions/{request}")
    expect(watched.page.frame_locator("iframe.frame").locator("#end")).to_be_visible()
    reached = frame_of(watched.page.locator("iframe.frame")).evaluate(
        """async () => {
            const tries = {
                parent: () => parent.document.title,
                cookie: () => document.cookie,
                storage: () => localStorage.length,
                server: () => fetch("/stats"),
                socket: () => new Promise((done, failed) => {
                    const here = document.baseURI.replace("http", "ws");
                    const socket = new WebSocket(here.replace("/page/frame.html", "/ws"));
                    socket.onopen = done;
                    socket.onerror = failed;
                }),
            };
            const reached = [];
            for (const [name, attempt] of Object.entries(tries)) {
                try { await attempt(); reached.push(name); } catch {}
            }
            return reached;
        }"""
    )
    assert reached == []


def test_a_frame_may_lie_about_its_height(watched: Watched, kernel: LiveKernel) -> None:
    """It is believed within bounds: the page stays where it is."""
    request = kernel.run(
        "display({'text/html': '<div id=end style=\"height:9000000px\">tall</div>'}, raw=True)"
    )
    watched.page.goto(f"{kernel.server.url}/#/kernels/{kernel.id}/executions/{request['request_id']}")
    expect(watched.page.get_by_role("button", name="Show the whole output")).to_be_visible()
    height = watched.page.locator("iframe.frame").bounding_box()
    assert height is not None and height["height"] <= 500


def test_a_huge_table_does_not_stop_the_page(watched: Watched, kernel: LiveKernel) -> None:
    """Its beginning is shown, the rest on demand; the page goes on answering."""
    kernel.run(
        "display({'text/html': '<table>' + '<tr><td>x</td><td>y</td></tr>' * 200_000 + '</table>'}, raw=True)"
    )
    watched.page.goto(f"{kernel.server.url}/#/kernels/{kernel.id}")
    expect(watched.page.get_by_role("button", name="Show the whole output").last).to_be_visible()
    watched.page.get_by_role("link", name="System").click()
    expect(watched.page.get_by_text("Healthy")).to_be_visible()


def test_code_and_errors_are_text(watched: Watched, kernel: LiveKernel) -> None:
    """Code, prints and errors that look like HTML are shown as they are."""
    request = kernel.run(f"text = {LOOKS_LIKE_HTML!r}\nprint(text)\nraise ValueError(text)")["request_id"]
    watched.page.goto(f"{kernel.server.url}/#/kernels/{kernel.id}/executions/{request}")
    expect(watched.page.locator(".terminal.stdout")).to_have_text(LOOKS_LIKE_HTML)
    expect(watched.page.locator("summary")).to_contain_text(LOOKS_LIKE_HTML)
    assert watched.page.locator("main img, main script").count() == 0
    watched.check(kernel.server)


@pytest.fixture
def marked(server: RunningServer) -> dict[str, Any]:
    server.create("orders")
    return {
        "id": "7d9f2c1e-0b7a-4c58-9d43-0f6c8a1f2b3c",
        "payload": {"x": LOOKS_LIKE_HTML},
        "headers": {"h": LOOKS_LIKE_HTML},
    }


def test_payloads_headers_and_names_are_text(
    watched: Watched, server: RunningServer, http: httpx.Client, marked: dict[str, Any]
) -> None:
    """Messages, headers, publishers and the names of subscribers that look like HTML are shown as they are."""
    http.post("/topics/orders/messages", json=marked).raise_for_status()
    page = watched.page
    goto(page, server, "#/topics/orders")
    row_with(page, "onerror").click()
    expect(page.get_by_label("Selected record")).to_contain_text("<script>")
    page.evaluate(
        """async (client_id) => {
            const socket = new WebSocket(location.origin.replace("http", "ws") + "/ws");
            await new Promise((done) => { socket.onopen = done; });
            socket.send(JSON.stringify({type: "subscribe", topic: "orders", client_id}));
        }""",
        LOOKS_LIKE_HTML,
    )
    page.get_by_role("link", name="System").click()
    expect(page.get_by_role("rowheader", name="<img src=x")).to_be_visible()
    assert page.locator("main img, main script").count() == 0
    watched.check(server)


def test_an_address_is_no_way_in(watched: Watched, server: RunningServer) -> None:
    """Whatever stands behind the hash is text too."""
    goto(watched.page, server, f"#/topics/{LOOKS_LIKE_HTML}?filter={LOOKS_LIKE_HTML}")
    expect(watched.page.get_by_role("heading", level=1)).to_be_visible()
    goto(watched.page, server, f"#/{LOOKS_LIKE_HTML}")
    expect(watched.page.get_by_text("There is no")).to_be_visible()
    watched.check(server)


FORGING = """
kernel = get_ipython().kernel
for id in ("{ended}", kernel.get_parent()["header"]["msg_id"]):
    kernel.session.send(
        kernel.iopub_socket, "execute_input", {{"code": "forged()", "execution_count": 99}},
        parent={{"header": {{**kernel.get_parent()["header"], "msg_id": id}}}}, ident=b"kernel",
    )
"""


def test_code_cannot_show_other_code(watched: Watched, kernel: LiveKernel) -> None:
    """An ``execute_input`` of its own changes the code of no cell, neither its own nor one that has ended."""
    ended = kernel.run("genuine = 1")
    forging = kernel.run(FORGING.format(ended=ended["request_id"]))
    page = watched.page
    page.goto(kernel.url)
    expect(page.locator(".console[data-ready]")).to_be_visible()
    for result in (ended, forging):
        cell = page.locator(f'article[data-request="{result["request_id"]}"]')
        expect(cell.locator(".code")).to_have_text(result["code"].strip())
    expect(page.locator("article.cell", has_text=f"[{ended['execution_count']}]")).to_have_count(1)
    expect(page.locator("article.cell", has_text="[99]")).to_have_count(0)
