"""The server: REST, WebSocket and Server-Sent Events on one broker."""

from himalia.server.app import create_app
from himalia.server.run import serve

__all__ = ["create_app", "serve"]
