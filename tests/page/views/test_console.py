"""A kernel's console on a real kernel."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.page.live_kernel import LiveKernel
from tests.page.relay import CuttableNetwork

pytestmark = pytest.mark.slow

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
STEPS = """
import pathlib, time
for n in range(60):
    print(f"step {{n}}.", flush=True)
    time.sleep(0.02)
    while n == 30 and not pathlib.Path({go_on!r}).exists():
        time.sleep(0.02)
"""
ALL_STEPS = [f"step {n}." for n in range(60)]


def cell(page: Page, request_id: str) -> Locator:
    return page.locator(f'article[data-request="{request_id}"]')


def last_cell(page: Page) -> Locator:
    return page.locator("article.cell").last


def run(page: Page, code: str) -> Locator:
    """Type code into the console and run it; its cell, when it has ended."""
    before = page.locator("article.cell").count()
    field = page.get_by_label("Code to run")
    field.fill(code)
    field.press("Enter")
    expect(page.locator("article.cell")).to_have_count(before + 1)
    expect(last_cell(page)).to_have_attribute("data-status", re.compile("ok|error"))
    return last_cell(page)


def open_console(page: Page, kernel: LiveKernel) -> None:
    page.goto(kernel.url)
    expect(page.locator(".console[data-ready]")).to_be_visible()


def lines(cell: Locator) -> list[str]:
    return cell.locator(".terminal").inner_text().splitlines()


def test_code_runs_and_its_output_comes(page: Page, kernel: LiveKernel) -> None:
    """What is typed runs; prints, results and colours are shown."""
    open_console(page, kernel)
    done = run(page, "print('plain \\x1b[31mred\\x1b[0m')\n6 * 7")
    expect(done.locator(".terminal").first).to_have_text("plain red")
    expect(done.locator(".t-f-1")).to_have_text("red")
    expect(done).to_contain_text("Out [")
    expect(done.locator(".display")).to_have_text("42")


def test_the_history_is_the_logs(page: Page, kernel: LiveKernel) -> None:
    """Up and down go through what was run before, by whomever."""
    kernel.run("first = 1")
    kernel.run("second = 2")
    open_console(page, kernel)
    field = page.get_by_label("Code to run")
    field.fill("draft")
    field.press("ArrowUp")
    expect(field).to_have_value("second = 2")
    field.press("ArrowUp")
    expect(field).to_have_value("first = 1")
    field.press("ArrowDown")
    field.press("ArrowDown")
    expect(field).to_have_value("draft")


def test_a_progress_bar_stays_in_its_place(page: Page, kernel: LiveKernel) -> None:
    """A carriage return goes back to the beginning of the line, and two bars below each other keep apart."""
    request = kernel.run(
        "import sys\n"
        "for n in range(0, 101, 10):\n"
        "    sys.stdout.write(f'\\rone {n}%\\n\\rtwo {n}%\\x1b[K\\x1b[A'); sys.stdout.flush()\n"
        "print('\\n\\ndone')"
    )["request_id"]
    open_console(page, kernel)
    assert lines(cell(page, request)) == ["one 100%", "two 100%", "done"]


def test_displays_are_updated_and_cleared(page: Page, kernel: LiveKernel) -> None:
    """An update changes the display in its place; a clearing takes all before it away."""
    request = kernel.run(
        "from IPython.display import display, clear_output, update_display\n"
        "print('gone'); clear_output()\n"
        "_ = display({'text/plain': 'before'}, raw=True, display_id='x'); print('between')\n"
        "update_display({'text/plain': 'after'}, raw=True, display_id='x')"
    )["request_id"]
    open_console(page, kernel)
    expect(cell(page, request).locator(".outputs")).to_have_text(re.compile(r"^after.*between$", re.DOTALL))


def test_rich_output(page: Page, kernel: LiveKernel) -> None:
    """Images as images, HTML and SVG in frames, LaTeX as text; so is a widget of which nothing more is known."""
    request = kernel.run(
        "from IPython.display import display\n"
        f"display({{'image/png': {PIXEL!r}, 'text/plain': 'a pixel'}}, raw=True)\n"
        "display({'text/html': '<b id=bold>bold</b>', 'text/plain': 'x'}, raw=True)\n"
        'display({\'image/svg+xml\': \'<svg width="90" height="40"><circle r="9"/></svg>\'}, raw=True)\n'
        "display({'text/latex': r'$\\frac{1}{2}$'}, raw=True)\n"
        "view = 'application/vnd.jupyter.widget-view+json'\n"
        "display({view: {'model_id': 'm'}, 'text/plain': 'IntSlider(value=7)'}, raw=True)"
    )["request_id"]
    open_console(page, kernel)
    shown = cell(page, request)
    image = shown.get_by_alt_text("a pixel")
    expect(image).to_be_visible()
    assert image.evaluate("image => image.naturalWidth") == 1
    expect(shown.frame_locator("iframe").first.locator("#bold")).to_have_text("bold")
    expect(shown.frame_locator("iframe").nth(1).locator("circle")).to_have_count(1)
    expect(shown).to_contain_text("\\frac{1}{2}")
    expect(shown).to_contain_text("IntSlider(value=7)")


def test_errors_are_folded(page: Page, kernel: LiveKernel) -> None:
    """One line says what happened; the traceback is a click away."""
    request = kernel.run("1 / 0")["request_id"]
    open_console(page, kernel)
    error = cell(page, request).locator("details")
    expect(error.locator("summary")).to_have_text("ZeroDivisionError: division by zero")
    expect(error.locator(".traceback")).not_to_be_visible()
    error.locator("summary").click()
    expect(error.locator(".traceback")).to_contain_text("Traceback")


def test_code_may_ask(page: Page, kernel: LiveKernel) -> None:
    """A question has a field of its own, and its answer stands in the output."""
    open_console(page, kernel)
    field = page.get_by_label("Code to run")
    field.fill("print('hello', input('Name? '))")
    field.press("Enter")
    answer = page.get_by_label("Name?")
    answer.fill("Ada")
    answer.press("Enter")
    expect(last_cell(page).locator(".terminal")).to_contain_text("hello Ada")
    expect(page.get_by_label("Name?")).to_have_count(0)


def test_long_output_is_cut_with_a_way_to_more(page: Page, kernel: LiveKernel) -> None:
    """The newest lines are elements; the rest is shown when asked for."""
    request = kernel.run("print('\\n'.join(f'line {n}' for n in range(3000)))")["request_id"]
    open_console(page, kernel)
    shown = cell(page, request)
    expect(shown.locator(".t-line")).to_have_count(500)
    shown.get_by_role("button", name="Show 2,500 earlier lines").click()
    expect(shown.locator(".t-line")).to_have_count(3000)


def test_two_browsers_show_the_same(new_page: Callable[..., Page], kernel: LiveKernel) -> None:
    """One types, the other sees it live; one comes later and sees the same."""
    first, second = new_page(), new_page()
    open_console(first, kernel)
    open_console(second, kernel)
    run(first, "print('seen by all')")
    expect(last_cell(second)).to_have_attribute("data-status", "ok")
    third = new_page()
    open_console(third, kernel)
    texts = [page.locator(".console-inner").text_content() or "" for page in (first, second, third)]
    assert "seen by all" in texts[0]
    assert texts[0] == texts[1] == texts[2]


def test_reload_in_mid_run(page: Page, kernel: LiveKernel, tmp_path: Path) -> None:
    """Nothing is missing and nothing is there twice."""
    request = kernel.begin(STEPS.format(go_on=str(tmp_path / "go")))
    open_console(page, kernel)
    expect(cell(page, request)).to_contain_text("step 30.")
    page.reload()
    (tmp_path / "go").touch()
    expect(cell(page, request)).to_have_attribute("data-status", "ok")
    assert lines(cell(page, request)) == ALL_STEPS


def test_the_connection_breaks_in_mid_run(
    new_page: Callable[..., Page], kernel: LiveKernel, tmp_path: Path
) -> None:
    """It is told, comes back by itself, and what was said meanwhile is there once."""
    page = new_page()
    with CuttableNetwork(kernel.server) as network:
        request = kernel.begin(STEPS.format(go_on=str(tmp_path / "go")))
        page.goto(f"{network.url}/#/kernels/{kernel.id}")
        expect(cell(page, request)).to_contain_text("step 30.")
        network.cut()
        expect(page.locator("#banner")).to_contain_text("The connection is lost")
        (tmp_path / "go").touch()
        network.mend()
        expect(page.locator("#banner")).not_to_be_visible()
        expect(cell(page, request)).to_have_attribute("data-status", "ok")
        assert lines(cell(page, request)) == ALL_STEPS


def test_an_execution_has_an_address(
    new_page: Callable[..., Page], kernel: LiveKernel, tmp_path: Path
) -> None:
    """Sent to somebody else it shows code and output, live while it runs."""
    request = kernel.begin(STEPS.format(go_on=str(tmp_path / "go")))
    sender, receiver = new_page(), new_page()
    open_console(sender, kernel)
    cell(sender, request).hover()
    cell(sender, request).get_by_role("link", name="Open").click()
    receiver.goto(sender.url)
    expect(cell(receiver, request)).to_contain_text("step 30.")
    (tmp_path / "go").touch()
    expect(cell(receiver, request)).to_have_attribute("data-status", "ok")
    assert lines(cell(receiver, request)) == ALL_STEPS
    assert cell(receiver, request).locator(".code").inner_text().strip().startswith("import pathlib")


def test_the_whole_life_of_a_kernel(page: Page, kernel: LiveKernel) -> None:
    """Start, run, interrupt, restart, stop; and what it said can still be read."""
    page.goto(f"{kernel.server.url}/#/kernels")
    page.get_by_role("button", name="Start", exact=True).click()
    expect(page.locator(".console[data-ready]")).to_be_visible()
    page.get_by_label("Code to run").fill("import time; print('asleep'); time.sleep(600)")
    page.get_by_label("Code to run").press("Enter")
    expect(last_cell(page)).to_contain_text("asleep")
    page.get_by_role("button", name="Interrupt").click()
    expect(last_cell(page).locator("summary")).to_contain_text("KeyboardInterrupt")
    page.get_by_role("button", name="Restart").click()
    page.get_by_role("button", name="Discard its state?").click()
    expect(page.get_by_text("Kernel restarted")).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    page.get_by_role("button", name="Really stop?").click()
    expect(page.get_by_text("it no longer runs")).to_be_visible()
    expect(page.get_by_label("Code to run")).not_to_be_visible()
    expect(page.locator("article.cell .terminal.stdout")).to_have_text("asleep")
