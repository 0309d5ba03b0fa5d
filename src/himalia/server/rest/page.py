"""The page at ``/``, served out of the package: its own modules, two frames for what is not ours, and Plotly.

Three documents with three policies. The page itself runs nothing but its own modules. ``frame.html`` shows what a
kernel made, and ``plot.html`` runs Plotly; both are sandboxed into an origin of their own by their answer's headers,
so they stay there even when somebody opens them directly.
"""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response
from starlette.exceptions import HTTPException

from himalia.server.auth import TheBroker
from himalia.server.rest import sessions

router = APIRouter(include_in_schema=False)

FOLDER = Path(__file__).parents[2] / "page"
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    # No module of ours parses HTML; where the browser can, it sees to it that none ever will. The one policy is for
    # the address of our worker.
    "require-trusted-types-for 'script'; trusted-types himalia-worker"
)
FRAMES = ("frame.html", "plot.html")
_PLOTLY_GOES_HERE = "/* Plotly */"
_INLINE_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)


def frame_policy(html: str) -> str:
    """Only the scripts that the document came with may run, known by their digests: not what is put into it."""
    digests = " ".join(f"'sha256-{_digest(script)}'" for script in _INLINE_SCRIPT.findall(html))
    return (
        f"default-src 'none'; script-src {digests}; style-src 'unsafe-inline'; img-src data: blob:; font-src data:; "
        "media-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'; sandbox allow-scripts"
    )


def _digest(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@router.get("/")
async def page(request: Request, broker: TheBroker) -> Response:
    """The page; with ``?token=`` a session for whoever has that key, and the page without it in the address."""
    if "token" not in request.query_params:
        return _file(request, "index.html")
    made = await broker.identity.sign_in_by_link(request.scope, request.headers.get("user-agent", ""))
    response = RedirectResponse("/", status_code=303, headers=_headers(PAGE_POLICY, "no-store"))
    if made is not None:
        sessions.remember(request, response, *made)
    return response


@router.get("/page/{name}")
@router.get("/page/{folder}/{name}")
async def page_file(request: Request, name: str, folder: str = "") -> Response:
    """A file of the page. They describe the program and not the data, so no key is needed."""
    path = f"{folder}/{name}" if folder else name
    if path not in _names():
        raise HTTPException(404)
    return _file(request, path)


def _names() -> set[str]:
    return {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.suffix in MEDIA_TYPES}


class _File(NamedTuple):
    content: bytes
    policy: str
    media_type: str
    etag: str


def _file(request: Request, name: str) -> Response:
    return _answer(request, _frame(name) if name in FRAMES else _read(name))


def _read(name: str) -> _File:
    content = (FOLDER / name).read_bytes()
    return _File(content, PAGE_POLICY, MEDIA_TYPES[Path(name).suffix], _etag(content))


@cache
def _frame(name: str) -> _File:
    """A frame's document. One without an origin may load nothing from here, so all is inside.

    Made and hashed once: Plotly's are megabytes, which everybody may ask for, without a key.
    """
    html = (FOLDER / name).read_text()
    if _PLOTLY_GOES_HERE in html:
        html = html.replace(_PLOTLY_GOES_HERE, _plotly())
    content = html.encode()
    return _File(content, frame_policy(html), MEDIA_TYPES[".html"], _etag(content))


def _etag(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def _plotly() -> str:
    """The bundle inside the ``plotly`` package, fit to stand in a document; empty where that is not installed."""
    spec = find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        return ""
    path = Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
    return path.read_text().replace("</script", "<\\/script") if path.exists() else ""


def _answer(request: Request, file: _File) -> Response:
    # Asked for again each time, sent again only if it changed: after an upgrade nobody sees half of the old page.
    headers = {**_headers(file.policy, "no-cache"), "ETag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)


def _headers(policy: str, cache: str) -> dict[str, str]:
    return {
        "Content-Security-Policy": policy,
        "Cache-Control": cache,
        "Referrer-Policy": "no-referrer",
        "X-Frame-Options": "SAMEORIGIN" if "frame-ancestors 'self'" in policy else "DENY",
        "X-Content-Type-Options": "nosniff",
        "Cross-Origin-Opener-Policy": "same-origin",
    }
