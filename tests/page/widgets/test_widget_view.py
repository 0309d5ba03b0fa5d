"""Widgets on a real kernel: displayed once, and then told by comm messages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.page.live_kernel import LiveKernel

pytestmark = pytest.mark.slow

LOOP = """
import pathlib, time
from tqdm.auto import tqdm
for n in tqdm(range(5), desc="a < b & c"):
    time.sleep(0.12)
    while n == 2 and not pathlib.Path({go_on!r}).exists():
        time.sleep(0.02)
"""
# Forged: a box that holds itself, twice at each level, and values that are none.
KNOT = """
from comm import create_comm
view = "application/vnd.jupyter.widget-view+json"
for name in ("a", "b"):
    create_comm(comm_id=name, target_name="jupyter.widget", data={"state": {
        "_model_name": "HBoxModel", "children": ["IPY_MODEL_a", "IPY_MODEL_b"], "layout": 7}})
create_comm(comm_id="p", target_name="jupyter.widget", data={"state": {
    "_model_name": "FloatProgressModel", "value": "x", "min": None, "max": [],
    "description": "<img src=x onerror=alert(1)>"}})
create_comm(comm_id=None, target_name="jupyter.widget", data=None)
display({view: {"model_id": "a"}, "text/plain": "knot"}, raw=True)
display({view: {"model_id": "p"}, "text/plain": "no number"}, raw=True)
"""


def cell(page: Page, request_id: str) -> Locator:
    return page.locator(f'article[data-request="{request_id}"]')


def bar(page: Page, request_id: str) -> Locator:
    return cell(page, request_id).get_by_role("progressbar")


def test_tqdm_is_live_and_the_same_after_a_reload(page: Page, kernel: LiveKernel, tmp_path: Path) -> None:
    """The bar moves while the code runs, ends at 5/5 and 100%, and a page that comes later shows that too."""
    request = kernel.begin(LOOP.format(go_on=str(tmp_path / "go")))
    page.goto(kernel.url)
    expect(bar(page, request)).to_have_attribute("aria-valuenow", "40")
    expect(cell(page, request)).to_contain_text(re.compile(r"a < b & c:\s+40%.*2/5", re.DOTALL))
    (tmp_path / "go").touch()
    for _ in range(2):
        expect(cell(page, request)).to_have_attribute("data-status", "ok")
        expect(bar(page, request)).to_have_attribute("aria-valuenow", "100")
        expect(cell(page, request)).to_contain_text(re.compile(r"a < b & c:\s+100%.*5/5 ", re.DOTALL))
        width = bar(page, request).locator(".bar-done").evaluate("bar => bar.style.width")
        assert width == "100%"
        page.reload()


def test_a_bar_at_an_address_of_its_own(page: Page, kernel: LiveKernel) -> None:
    """The page of one execution shows its widgets too."""
    request = kernel.run("from tqdm.auto import tqdm\nfor n in tqdm(range(5)): pass")["request_id"]
    page.goto(f"{kernel.server.url}/#/kernels/{kernel.id}/executions/{request}")
    expect(bar(page, request)).to_have_attribute("aria-valuenow", "100")
    expect(cell(page, request)).to_contain_text("5/5")


def test_widgets_in_rows_and_columns(page: Page, kernel: LiveKernel) -> None:
    """Progress bars, labels, HTML in a frame; what cannot be drawn is named, and what was closed is gone."""
    request = kernel.run(
        "import ipywidgets as w\n"
        "bar = w.IntProgress(value=1, max=4, description='Loading')\n"
        "box = w.VBox([bar, w.HBox([w.Label('a label'), w.HTML('<b id=bold>bold</b>'), w.Button(description='x')])])\n"
        "gone = w.Label('not to be seen')\n"
        "display(box, gone)\n"
        "bar.value = 3\n"
        "gone.close()"
    )["request_id"]
    page.goto(kernel.url)
    shown = cell(page, request)
    expect(shown.get_by_role("progressbar", name="Loading")).to_have_attribute("aria-valuenow", "75")
    expect(shown).to_contain_text("a label")
    expect(shown).to_contain_text("[Button]")
    expect(shown.frame_locator("iframe").locator("#bold")).to_have_text("bold")
    expect(shown.locator(".widget", has_text="not to be seen")).to_have_count(1)
    expect(shown.locator(".widget", has_text="not to be seen")).not_to_be_visible()


def test_a_widget_that_cannot_be_drawn_is_text(page: Page, kernel: LiveKernel) -> None:
    request = kernel.run("import ipywidgets\nipywidgets.IntSlider(value=7)")["request_id"]
    page.goto(kernel.url)
    expect(cell(page, request)).to_contain_text("A widget, as text:")
    expect(cell(page, request)).to_contain_text("IntSlider(value=7")


def test_forged_models_neither_hang_nor_reach_the_page(page: Page, kernel: LiveKernel) -> None:
    """Models may refer to each other in any way; no more than 200 parts of a widget are drawn, and text is text."""
    request = kernel.run(KNOT)["request_id"]
    page.goto(kernel.url)
    shown = cell(page, request)
    expect(shown.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "0")
    assert 100 < shown.locator(".widget").count() <= 201
    assert shown.locator("img").count() == 0
