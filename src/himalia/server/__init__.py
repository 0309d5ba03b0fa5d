"""The server: REST, WebSocket and Server-Sent Events on one context.

Names are imported when they are used, so that commands which only change a file of the server do not load all of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from himalia.server.app import create_app
    from himalia.server.run import serve

__all__ = ["create_app", "serve"]

_HOMES = {"create_app": "app", "serve": "run"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
