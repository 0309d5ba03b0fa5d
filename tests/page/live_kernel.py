"""A real kernel, and what tests ask of it beside the page."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from tests.servers import RunningServer


class LiveKernel:
    """A kernel of a server; ends with its ``with`` block."""

    def __init__(self, server: RunningServer) -> None:
        self.server = server

    def __enter__(self) -> Self:
        self._http = self.server.http()
        self.id: str = self._http.post("/api/kernels", json={}).raise_for_status().json()["id"]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._http.delete(f"/api/kernels/{self.id}")
        self._http.close()

    @property
    def url(self) -> str:
        return f"{self.server.url}/#/kernels/{self.id}"

    def run(self, code: str) -> dict[str, Any]:
        """Run code to its end."""
        answer = self._http.post(f"/api/kernels/{self.id}/execute", json={"code": code, "wait": True})
        return answer.raise_for_status().json()  # type: ignore[no-any-return]

    def begin(self, code: str) -> str:
        """Begin to run code; returns the request's id."""
        answer = self._http.post(f"/api/kernels/{self.id}/execute", json={"code": code})
        return str(answer.raise_for_status().json()["request_id"])
