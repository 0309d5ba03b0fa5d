"""Themes, phones, keys, and who is not looking."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.page.browser import goto, offsets_shown, row_with
from tests.page.live_kernel import LiveKernel
from tests.servers import RunningServer

pytestmark = pytest.mark.slow

SECTIONS = ("topics", "kernels", "executions", "pipeline", "system")

# The contrast of each text with what lies behind it, as the guidelines for accessible pages count it.
LOW_CONTRAST = """() => {
    const pixel = Object.assign(document.createElement("canvas"), {width: 1, height: 1});
    const canvas = pixel.getContext("2d", {willReadFrequently: true});
    const rgba = (colour) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return canvas.getImageData(0, 0, 1, 1).data;
    };
    const light = ([r, g, b]) => {
        const linear = (one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4;
        const [x, y, z] = [r, g, b].map((one) => linear(one / 255));
        return 0.2126 * x + 0.7152 * y + 0.0722 * z;
    };
    const ground = (element) => {
        for (let one = element; one; one = one.parentElement) {
            const colour = rgba(getComputedStyle(one).backgroundColor);
            if (colour[3] > 200) return colour;
        }
        return rgba(getComputedStyle(document.body).backgroundColor);
    };
    const found = [];
    for (const element of document.querySelectorAll("body *")) {
        const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
        const isSeen = element.checkVisibility({opacityProperty: true}) && !element.closest(".visually-hidden, .skip");
        if (!hasText || !isSeen) continue;
        const [a, b] = [light(rgba(getComputedStyle(element).color)), light(ground(element))];
        const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        const name = element.className || element.tagName;
        if (ratio < 4.5) found.push(`${name} ${element.textContent.slice(0, 30)} ${ratio.toFixed(2)}`);
    }
    return found;
}"""


@pytest.fixture(scope="module")
def busy(kernel: LiveKernel) -> LiveKernel:
    """A kernel that has said a bit of everything, and a topic with a long name."""
    kernel.run("print('\\x1b[32mgreen\\x1b[0m and \\x1b[33myellow\\x1b[0m'); 1 / 0")
    kernel.run("x = '" + "long " * 100 + "'\nprint(x)\nx")
    kernel.server.create("orders.of.a.shop.with.a.rather-long-name.that-goes-on-and-on-without-an-end")
    return kernel


def addresses(kernel: LiveKernel) -> list[str]:
    return [
        *(f"#/{section}" for section in SECTIONS),
        f"#/kernels/{kernel.id}",
        f"#/topics/kernels.{kernel.id}",
    ]


def settled(page: Page, kernel: LiveKernel, address: str) -> None:
    goto(page, kernel.server, address)
    expect(page.locator("main h1")).to_be_visible()
    expect(page.locator("main .loading")).to_have_count(0)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_in_both_themes(new_page: Callable[..., Page], busy: LiveKernel, theme: str) -> None:
    """Every text has a contrast of 4.5 or more with its ground."""
    page = new_page(color_scheme=theme)
    for address in addresses(busy):
        settled(page, busy, address)
        assert page.evaluate(LOW_CONTRAST) == []


def test_the_theme_can_be_chosen_and_is_kept(new_page: Callable[..., Page], server: RunningServer) -> None:
    """The system's theme until somebody chooses; then that one, also after a reload."""
    page = new_page(color_scheme="light")
    goto(page, server)
    ground = "() => getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    page.get_by_role("button", name="Use the dark theme").click()
    dark = page.evaluate(ground)
    assert dark != light
    page.reload()
    assert page.evaluate(ground) == dark


def test_a_phone_is_wide_enough(new_page: Callable[..., Page], busy: LiveKernel) -> None:
    """No section is wider than the screen."""
    page = new_page(viewport={"width": 375, "height": 720}, has_touch=True, is_mobile=True)
    for address in addresses(busy):
        settled(page, busy, address)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 375, address


def test_the_keyboard_leads_everywhere(page: Page, busy: LiveKernel) -> None:
    """g and a letter for the sections, / to find, ? for help; a record is chosen with the arrows."""
    goto(page, busy.server)
    expect(page.get_by_role("heading", name="Topics")).to_be_visible()
    for key, title in (
        ("k", "Kernels"),
        ("e", "Executions"),
        ("p", "Pipeline"),
        ("s", "System"),
        ("t", "Topics"),
    ):
        page.keyboard.press("g")
        page.keyboard.press(key)
        expect(page.get_by_role("heading", name=title, exact=True, level=1)).to_be_visible()
    page.keyboard.press("/")
    expect(page.get_by_label("Find a topic")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    goto(page, busy.server, f"#/topics/kernels.{busy.id}")
    expect(page.locator(".vrow:not([hidden])")).not_to_have_count(0)
    page.locator(".vlist").focus()
    page.keyboard.press("ArrowUp")
    expect(page.get_by_label("Selected record")).to_be_visible()


def hide(page: Page, *, hidden: bool) -> None:
    """As if another tab was in front."""
    page.evaluate(
        """value => {
            Object.defineProperty(document, "hidden", {value, configurable: true});
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def test_a_hidden_page_asks_nothing(page: Page, server: RunningServer) -> None:
    """While nobody looks, the server is not asked; when somebody looks again, it is asked at once."""
    page.clock.install()
    goto(page, server, "#/system")
    expect(page.get_by_text("Healthy")).to_be_visible()
    hide(page, hidden=True)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.run_for(60_000)
    assert asked == []
    with page.expect_request("**/stats"):
        hide(page, hidden=False)


def test_a_hidden_page_lets_go_and_comes_back_where_it_was(page: Page, server: RunningServer) -> None:
    """It has no connection while nobody looks for long; what came meanwhile is there once."""
    server.create("orders")
    page.clock.install()
    goto(page, server, "#/topics/orders")
    with server.http() as http:
        http.post("/topics/orders/messages", json=[{"payload": n} for n in range(10)])
        expect(row_with(page, re.compile("^9"))).to_be_visible()
        hide(page, hidden=True)
        page.clock.run_for(20_000)
        expect(page.locator("html")).to_have_attribute("data-connection", "asleep")
        http.post("/topics/orders/messages", json=[{"payload": n} for n in range(10)])
    hide(page, hidden=False)
    expect(row_with(page, re.compile("^19"))).to_be_visible()
    assert offsets_shown(page) == list(range(20))


def test_nothing_here(page: Page, server: RunningServer) -> None:
    """An address that leads nowhere says so, and what is not there is told in the server's words."""
    goto(page, server, "#/moons")
    expect(page.get_by_text("There is no section “moons”.")).to_be_visible()
    goto(page, server, "#/topics/nothing")
    expect(page.locator(".complaint")).to_contain_text("topic 'nothing' does not exist")
    goto(page, server, "#/kernels/nothing")
    expect(page.get_by_text("topic 'kernels.nothing' does not exist").first).to_be_visible()
