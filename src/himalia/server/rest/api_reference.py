"""The reference of the REST API at ``/docs``: HTML from the OpenAPI document, without scripts or other hosts."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from html import escape
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response

router = APIRouter(include_in_schema=False)

STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "section{border-top:1px solid #8885;padding:.5rem 0}pre{white-space:pre-wrap}"
    "table{border-collapse:collapse}td,th{text-align:left;padding:.1rem 1rem .1rem 0;vertical-align:top}"
    ":root{color-scheme:light dark}"
)
POLICY = (
    "default-src 'none'; style-src 'sha256-"
    + base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    + "'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


async def api_document(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document. Generated once, in a thread, because it takes 0.2 s."""
    if app.openapi_schema is None:
        await asyncio.to_thread(app.openapi)
    return app.openapi()


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    return JSONResponse(await api_document(request.app))


@router.get("/docs")
async def reference(request: Request) -> Response:
    """Return every call with its parameters and responses."""
    html = render(await api_document(request.app))
    return HTMLResponse(html, headers={"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"})


@router.get("/redoc")
async def redoc() -> Response:
    return RedirectResponse("/docs", status_code=308)


def render(document: dict[str, Any]) -> str:
    calls = [
        _call(method, path, call)
        for path, methods in document["paths"].items()
        for method, call in methods.items()
    ]
    info = document["info"]
    return (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        f"<title>{escape(info['title'])} API</title><style>{STYLE}</style>"
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info.get('description', ''))}</p>"
        '<p>For programs: <a href="/openapi.json">/openapi.json</a>, <a href="/asyncapi.json">/asyncapi.json</a>.</p>'
        + "".join(calls)
    )


def _call(method: str, path: str, call: dict[str, Any]) -> str:
    parameters = [
        (f"{each['name']} ({each['in']})", each.get("description", "")) for each in call.get("parameters", [])
    ]
    bodies = [(kind, "body") for kind in call.get("requestBody", {}).get("content", {})]
    responses = [(status, response.get("description", "")) for status, response in call["responses"].items()]
    return (
        f"<section><h2><code>{escape(method.upper())} {escape(path)}</code></h2>"
        f"<pre>{escape(call.get('description', call.get('summary', '')))}</pre>"
        f"{_table(parameters + bodies)}{_table(responses)}</section>"
    )


def _table(rows: list[tuple[str, str]]) -> str:
    cells = "".join(f"<tr><th><code>{escape(str(name))}</code><td>{escape(text)}" for name, text in rows)
    return f"<table>{cells}</table>" if rows else ""
