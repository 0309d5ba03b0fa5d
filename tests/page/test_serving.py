"""The page's files, and with which policies they are served."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import dirname, join, normpath

import httpx
import pytest

from himalia.server.rest import page as served
from tests.servers import RunningServer

MODULES = sorted(path.relative_to(served.FOLDER).as_posix() for path in served.FOLDER.rglob("*.js"))
POLICY = "content-security-policy"


@pytest.fixture
def http(server: RunningServer) -> Iterator[httpx.Client]:
    with server.http() as client:
        yield client


def directives(response: httpx.Response) -> dict[str, set[str]]:
    parts = [part.split() for part in response.headers[POLICY].split(";")]
    return {name: set(values) for name, *values in parts}


def test_the_page_runs_nothing_but_its_own_modules(http: httpx.Client) -> None:
    """No inline script or style, no other origin, no frame around it, no HTML parsed by a script."""
    policy = directives(http.get("/"))
    assert policy["default-src"] == {"'none'"}
    assert (
        policy["script-src"]
        == policy["style-src"]
        == policy["connect-src"]
        == policy["frame-src"]
        == {"'self'"}
    )
    assert policy["img-src"] == {"'self'", "data:"}
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == {"'none'"}
    assert policy["require-trusted-types-for"] == {"'script'"}


@pytest.mark.parametrize("name", served.FRAMES)
def test_a_frame_has_no_origin_and_runs_only_what_it_came_with(http: httpx.Client, name: str) -> None:
    """Sandboxed by its own headers, without allow-same-origin; scripts by digest; nothing from a network."""
    answer = http.get(f"/page/{name}")
    policy = directives(answer)
    assert policy["sandbox"] == {"allow-scripts"}
    assert policy["default-src"] == {"'none'"}
    scripts = re.findall("<script>", answer.text)
    assert len(policy["script-src"]) == len(scripts) > 0
    assert all(source.startswith("'sha256-") for source in policy["script-src"])
    assert policy["img-src"] <= {"data:", "blob:"}


def test_index_has_nothing_inline(http: httpx.Client) -> None:
    html = http.get("/").text
    assert re.findall(r"<script[^>]*>", html) == ['<script type="module" src="/page/main.js">']
    assert "<style" not in html and " style=" not in html and " on" not in re.sub(r">[^<]*<", "><", html)


@pytest.mark.parametrize("name", MODULES)
def test_every_import_is_a_module_that_is_there(http: httpx.Client, name: str) -> None:
    """Served with its own type, which browsers insist on; what it imports is there too."""
    answer = http.get(f"/page/{name}")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/javascript")
    imported = re.findall(r'from "([^"]+)"', answer.text)
    assert {normpath(join(dirname(name), path)) for path in imported} <= set(MODULES)


@pytest.mark.parametrize("name", MODULES)
def test_no_module_parses_html_or_loads_from_elsewhere(name: str) -> None:
    """Text becomes text. Nothing is fetched but from the server itself."""
    source = (served.FOLDER / name).read_text()
    for sink in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "srcdoc",
    ):
        assert sink not in source
    assert set(re.findall(r"https?://[^\s\"'`$]+", source)) <= {"http://www.w3.org/2000/svg"}


def test_files_are_sent_again_only_if_they_changed(http: httpx.Client) -> None:
    """Asked for again with the tag of what the browser has, the answer is 304 and empty."""
    tag = http.get("/page/style.css").headers["etag"]
    again = http.get("/page/style.css", headers={"If-None-Match": tag})
    assert (again.status_code, again.content, again.headers["cache-control"]) == (304, b"", "no-cache")


@pytest.mark.parametrize("name", ["nothing.js", "..%2Fsettings.py", "%2e%2e%2fpy.typed", "main.js%00", "."])
def test_nothing_else_can_be_read(http: httpx.Client, name: str) -> None:
    assert http.get(f"/page/{name}").status_code == 404


def test_without_plotly_there_is_still_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the package is not installed, the document comes without the bundle, and says so to the page."""
    monkeypatch.setattr(served, "find_spec", lambda name: None)
    document = served._build_frame.__wrapped__("plot.html")
    assert len(document.content) < 10_000 and b"missing: true" in document.content
    assert "sandbox allow-scripts" in document.policy


def test_a_large_file_is_not_hashed_for_every_stranger(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plotly's frame is megabytes and needs no key: each request costs what sending it does, and no more."""
    first = http.get("/page/plot.html")
    hashed: list[int] = []
    digest = hashlib.sha256
    monkeypatch.setattr(hashlib, "sha256", lambda data=b"": hashed.append(len(data)) or digest(data))
    assert http.get("/page/plot.html").headers["etag"] == first.headers["etag"]
    assert sum(hashed) < len(first.content)


def test_every_module_is_documented() -> None:
    """docs/page.md says what each module is, by folder, and names none that is not there."""
    document = (Path(__file__).parents[2] / "docs" / "page.md").read_text()
    table = document.partition("## Implementation")[2]
    rows = "\n".join(line.split("|")[1] for line in table.splitlines() if line.startswith("|"))
    assert sorted(re.findall(r"`((?:\w+/)?\w+\.js)`", rows)) == MODULES
