"""The page at ``/``: opening it with ``?token=`` keeps the token in a cookie and out of the address."""

from __future__ import annotations

from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from himalia import __version__
from himalia.server.access import TheBroker
from himalia.server.trust import COOKIE

router = APIRouter(include_in_schema=False)

_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
}
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Himalia</title>
<meta name="viewport" content="width=device-width">
<style>body{font:16px/1.5 system-ui;max-width:40rem;margin:4rem auto;padding:0 1rem;color-scheme:light dark}</style>
<h1>Himalia __VERSION__ is running</h1>
<p>A message broker on one durable log; everything that reads is a cursor on it.</p>
<ul><li><a href="/docs">REST interface</a> and its <a href="/openapi.json">OpenAPI document</a>
<li><a href="/asyncapi.json">AsyncAPI document</a> of the WebSocket at <code>/ws</code>
<li><a href="/topics">Topics</a>, <a href="/stats">statistics</a>, <a href="/health">health</a>,
<a href="/metrics">metrics</a></ul>
<p>On this machine: <code>himalia tail '&gt;'</code></p></html>
"""


@router.get("/")
async def page(request: Request, broker: TheBroker) -> Response:
    token = request.query_params.get("token")
    if token is None:
        return HTMLResponse(_PAGE.replace("__VERSION__", __version__), headers=_HEADERS)
    broker.keyring.identify(request.headers, request.url.query)
    response = RedirectResponse("/", status_code=303, headers=_HEADERS)
    response.set_cookie(
        COOKIE, quote(token, safe=""), httponly=True, samesite="strict", secure=request.url.scheme == "https"
    )
    return response
