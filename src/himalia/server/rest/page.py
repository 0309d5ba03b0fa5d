"""Serves the page at ``/`` from the package: its modules, two frames for foreign content, and Plotly.

Three documents with three policies. The page runs only its own modules. ``frame.html`` shows HTML that a kernel made,
and ``plot.html`` runs Plotly; response headers sandbox both into an opaque origin, even if they are opened directly.
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

from himalia.server.auth import Context
from himalia.server.identity.sessions import Session
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
    # No module of the page parses HTML, and browsers that can enforce it do. The one policy is for the worker's URL.
    "require-trusted-types-for 'script'; trusted-types himalia-worker"
)
FRAMES = ("frame.html", "plot.html")
_PLOTLY_GOES_HERE = "/* Plotly */"
_INLINE_SCRIPT = re.compile(r"<script>(.*?)</script>", re.DOTALL)


def frame_policy(html: str) -> str:
    """Allow only the scripts that the document was served with, by digest: not those of content added later."""
    digests = " ".join(f"'sha256-{_hash(script)}'" for script in _INLINE_SCRIPT.findall(html))
    return (
        f"default-src 'none'; script-src {digests}; style-src 'unsafe-inline'; img-src data: blob:; font-src data:; "
        "media-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'; sandbox allow-scripts"
    )


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@router.get("/")
async def page(request: Request, context: Context) -> Response:
    """Return the page; with ``?token=``, start a session and redirect to the page without the token in its URL."""
    if "token" not in request.query_params:
        return _serve(request, "index.html")
    session: tuple[str, Session] | None = None
    if context.identity.requires_key:
        agent = request.headers.get("user-agent", "")
        session = await context.identity.sessions.sign_in_by_link(request.scope, agent)
    response = RedirectResponse("/", status_code=303, headers=_make_headers(PAGE_POLICY, "no-store"))
    if session is not None:
        sessions.set_session_cookie(request, response, *session)
    return response


@router.get("/page/{name}")
@router.get("/page/{folder}/{name}")
async def page_file(request: Request, name: str, folder: str = "") -> Response:
    """Return a file of the page. These belong to the program, not to the data, so they need no key."""
    path = f"{folder}/{name}" if folder else name
    if path not in _list_files():
        raise HTTPException(404)
    return _serve(request, path)


def _list_files() -> set[str]:
    return {path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*") if path.suffix in MEDIA_TYPES}


class _PageFile(NamedTuple):
    content: bytes
    policy: str
    media_type: str
    etag: str


def _serve(request: Request, name: str) -> Response:
    return _respond(request, _build_frame(name) if name in FRAMES else _load(name))


def _load(name: str) -> _PageFile:
    content = (FOLDER / name).read_bytes()
    return _PageFile(content, PAGE_POLICY, MEDIA_TYPES[Path(name).suffix], _make_etag(content))


@cache
def _build_frame(name: str) -> _PageFile:
    """Return the document of a frame. Its opaque origin may load nothing from the server, so all of it is inline.

    Built and hashed once: Plotly is megabytes, and anyone may request it without a key.
    """
    html = (FOLDER / name).read_text()
    if _PLOTLY_GOES_HERE in html:
        html = html.replace(_PLOTLY_GOES_HERE, _read_plotly())
    content = html.encode()
    return _PageFile(content, frame_policy(html), MEDIA_TYPES[".html"], _make_etag(content))


def _make_etag(content: bytes) -> str:
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def _read_plotly() -> str:
    """Return the bundle of the ``plotly`` package, escaped for a script element; empty if it is not installed."""
    spec = find_spec("plotly")
    if spec is None or not spec.submodule_search_locations:
        return ""
    path = Path(spec.submodule_search_locations[0]) / "package_data" / "plotly.min.js"
    return path.read_text().replace("</script", "<\\/script") if path.exists() else ""


def _respond(request: Request, file: _PageFile) -> Response:
    # Revalidated on each load and sent only if changed: no browser mixes files of two versions after an upgrade.
    headers = {**_make_headers(file.policy, "no-cache"), "ETag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)


def _make_headers(policy: str, cache: str) -> dict[str, str]:
    return {
        "Content-Security-Policy": policy,
        "Cache-Control": cache,
        "Referrer-Policy": "no-referrer",
        "X-Frame-Options": "SAMEORIGIN" if "frame-ancestors 'self'" in policy else "DENY",
        "X-Content-Type-Options": "nosniff",
        "Cross-Origin-Opener-Policy": "same-origin",
    }
