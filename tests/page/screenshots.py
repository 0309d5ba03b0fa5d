"""Pictures of the page for the documents: ``python -m tests.page.screenshots``. It ends by itself.

A real server with a real kernel that does a little work, orders that come in meanwhile, and a warehouse as the
pipeline would have filled it.
"""

from __future__ import annotations

import math
import os
import random
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, expect

from tests.page.browser import running_browser
from tests.page.live_kernel import LiveKernel
from tests.page.warehouse import write_busy_hour
from tests.servers import RunningServer, start_server

FOLDER = Path(__file__).parents[2] / "docs" / "images"
DESK = {"width": 1280, "height": 800}
TALL = {"width": 1280, "height": 1240}
PHONE = {"width": 390, "height": 780}

TRAINING = """import math, time
losses = []
for epoch in range(1, 41):
    losses.append(1.9 * math.exp(-epoch / 12) + 0.15)
    bar = "█" * (epoch // 2) + "░" * (20 - epoch // 2)
    print(f"\\rtraining \\x1b[36m{bar}\\x1b[0m {epoch}/40  loss \\x1b[1m{losses[-1]:.3f}\\x1b[0m", end="", flush=True)
print()"""
CURVE = """import plotly.graph_objects as go, plotly.io
plotly.io.renderers.default = "plotly_mimetype"
figure = go.Figure(go.Scatter(y=losses, mode="lines", line={"color": "#5b5bd6", "width": 3}))
figure.update_layout(margin={"l": 40, "r": 10, "t": 10, "b": 30}, paper_bgcolor="rgba(0,0,0,0)",
                     plot_bgcolor="rgba(0,0,0,0)", font={"color": "#8a8a96"})
figure.update_xaxes(gridcolor="#8884"); figure.update_yaxes(gridcolor="#8884")
figure.show()"""
TABLE = """from IPython.display import HTML
rows = [("A-17", 1204, 31.5), ("B-2", 967, 12.0), ("C-40", 655, 87.9)]
cells = "".join(f"<tr><td>{s}</td><td>{n:,}</td><td>{p:.2f}</td></tr>" for s, n, p in rows)
HTML(f"<table><thead><tr><th>sku</th><th>sold</th><th>price</th></tr></thead>{cells}</table>")"""
FAILING = """def price(order):
    return order["total"] / order["quantity"]

price({"total": 120, "quantity": 0})"""


@contextmanager
def demo(directory: Path) -> Iterator[LiveKernel]:
    """A server with something to see on it."""
    os.environ |= {
        "HIMALIA_RUNTIME_DIR": str(directory / "run"),
        "JUPYTER_RUNTIME_DIR": str(directory / "jupyter"),
    }
    (directory / "jupyter").mkdir()
    write_busy_hour(directory / "warehouse")
    log = f"sqlite://{directory}/log.db"
    server = start_server(auth=False, log=log, warehouse=directory / "warehouse")
    try:
        server.create("clicks", "orders", "refunds", "pipeline.positions")
        with LiveKernel(server) as kernel:
            for code in ("import this_team.pricing", TRAINING, TABLE, FAILING, CURVE):
                kernel.run(code)
            yield kernel
    finally:
        server.stop()


@contextmanager
def traffic(server: RunningServer) -> Iterator[None]:
    """Orders, clicks and refunds, as they come in a shop."""
    ended = threading.Event()
    shop = threading.Thread(target=_publish, args=(server, ended))
    shop.start()
    try:
        yield
    finally:
        ended.set()
        shop.join()


def _publish(server: RunningServer, ended: threading.Event) -> None:
    chance = random.Random(3)
    tick = 0
    with server.http() as http:
        epochs = {topic["name"]: topic["epoch"] for topic in http.get("/topics").json()["topics"]}
        while not ended.wait(0.05):
            tick += 1
            wave = 1 + math.sin(tick / 12)
            for topic, most in (("orders", 9), ("clicks", 22), ("refunds", 1)):
                messages = [_message(topic, chance) for _ in range(int(most * wave * chance.random()))]
                if messages:
                    http.post(f"/topics/{topic}/messages", json=messages)
            if tick % 20 == 0:
                ends = {topic["name"]: topic["end"] for topic in http.get("/topics").json()["topics"]}
                read = {
                    name: {"offset": max(ends[name] - 20, 0), "epoch": epoch}
                    for name, epoch in epochs.items()
                }
                http.post("/topics/pipeline.positions/messages", json={"payload": {"positions": read}})


def _message(topic: str, chance: random.Random) -> dict[str, object]:
    sku = f"{chance.choice('ABC')}-{chance.randint(1, 40)}"
    payload = {
        "orders": {
            "sku": sku,
            "quantity": chance.randint(1, 5),
            "total": chance.randint(8, 240),
            "country": "DE",
        },
        "clicks": {"page": f"/products/{sku}", "ms": chance.randint(20, 900)},
        "refunds": {"sku": sku, "reason": "too small"},
    }[topic]
    return {"payload": payload, "headers": {"source": chance.choice(["web", "app"])}}


def take(browser: Browser, kernel: LiveKernel) -> None:
    shots: list[tuple[str, str, Callable[[Page], None]]] = [
        ("topics", "#/topics", lambda page: page.wait_for_timeout(20_000)),
        ("topic", "#/topics/orders", _choose_a_record),
        ("console", f"#/kernels/{kernel.id}", _until_drawn),
        ("kernels", "#/kernels", lambda page: expect(page.locator(".kernel-card")).to_be_visible()),
        ("executions", "#/executions", lambda page: expect(page.locator(".executions")).to_be_visible()),
        ("pipeline", "#/pipeline", _until_drawn),
        ("system", "#/system", lambda page: page.wait_for_timeout(15_000)),
    ]
    for name, address, until_ready in shots:
        for theme in ("light", "dark"):
            _shoot(browser, kernel, address, until_ready, FOLDER / f"{name}-{theme}.png", theme)
    phone: list[tuple[str, str, Callable[[Page], None]]] = [
        ("phone-console", f"#/kernels/{kernel.id}", _until_drawn),
        ("phone-topic", "#/topics/orders", lambda page: page.wait_for_timeout(1500)),
        ("phone-pipeline", "#/pipeline", _until_drawn),
    ]
    for name, address, until_ready in phone:
        _shoot(browser, kernel, address, until_ready, FOLDER / f"{name}.png", "light", is_phone=True)


def _shoot(
    browser: Browser,
    kernel: LiveKernel,
    address: str,
    until_ready: Callable[[Page], None],
    path: Path,
    theme: str,
    *,
    is_phone: bool = False,
) -> None:
    viewport = PHONE if is_phone else TALL if path.name.startswith("console") else DESK
    page = browser.new_page(viewport=viewport, color_scheme=theme, is_mobile=is_phone)
    page.goto(f"{kernel.server.url}/{address}")
    until_ready(page)
    page.screenshot(path=path)
    page.close()
    print(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


def _choose_a_record(page: Page) -> None:
    rows = page.locator(".vrow:not([hidden])")
    expect(rows).not_to_have_count(0)
    page.wait_for_timeout(2500)
    page.get_by_role("button", name="Pause").click()
    page.locator(".vlist").focus()
    for _ in range(6):
        page.keyboard.press("ArrowUp")


def _until_drawn(page: Page) -> None:
    page.locator("iframe.frame[data-drawn]").wait_for(timeout=30_000)
    page.wait_for_timeout(1000)


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as directory,
        running_browser() as browser,
        demo(Path(directory)) as kernel,
        traffic(kernel.server),
    ):
        take(browser, kernel)


if __name__ == "__main__":
    main()
