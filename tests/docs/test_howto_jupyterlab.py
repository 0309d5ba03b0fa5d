"""docs/howto/jupyterlab.md: a real JupyterLab starts a real kernel, and Himalia attaches to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from websockets.sync.client import ClientConnection, connect

from tests.docs.sessions import free_port

TOKEN = "a-token-of-jupyter"
CELL_MAX_S = 60.0


class Notebook:
    """Somebody who has a notebook open in JupyterLab: the same calls that its page makes."""

    def __init__(self, port: int) -> None:
        self._url = f"127.0.0.1:{port}/api"
        self._headers = {"Authorization": f"token {TOKEN}"}
        self._kernel_id = ""
        self._channels: ClientConnection | None = None
        self._opened = ExitStack()

    def run_cell(self, code: str) -> None:
        """Run a cell to its end. The first one opens the notebook, which starts its kernel."""
        if self._channels is None:
            self._channels = self._open()
        request = _execute_request(code)
        self._channels.send(json.dumps(request))
        while not _ends(json.loads(self._channels.recv(CELL_MAX_S)), request):
            pass

    def restart(self, _: str) -> None:
        """As JupyterLab does it: it connects anew, which the server answers once the new process is heard."""
        self.close()
        self._post(f"kernels/{self._kernel_id}/restart", {})
        self._channels = self._connect()

    def close(self) -> None:
        self._opened.close()

    def _open(self) -> ClientConnection:
        wanted = {"path": "a.ipynb", "name": "a.ipynb", "type": "notebook", "kernel": {"name": "python3"}}
        self._kernel_id = self._post("sessions", wanted)["kernel"]["id"]
        return self._connect()

    def _connect(self) -> ClientConnection:
        url = f"ws://{self._url}/kernels/{self._kernel_id}/channels?session_id=lab"
        return self._opened.enter_context(connect(url, additional_headers=self._headers))

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = httpx.post(
            f"http://{self._url}/{path}",
            json=body,
            headers=self._headers,
            timeout=CELL_MAX_S,
            trust_env=False,
        )
        found: dict[str, Any] = answer.raise_for_status().json()
        return found


def _execute_request(code: str) -> dict[str, Any]:
    header = {"msg_id": uuid4().hex, "msg_type": "execute_request", "session": "lab", "username": "ann"}
    content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
    return {
        "channel": "shell",
        "header": {**header, "version": "5.3", "date": "2026-11-16T09:00:00Z"},
        "parent_header": {},
        "metadata": {},
        "content": {**content, "user_expressions": {}, "stop_on_error": True},
        "buffers": [],
    }


def _ends(message: dict[str, Any], request: dict[str, Any]) -> bool:
    is_ours = message["parent_header"].get("msg_id") == request["header"]["msg_id"]
    return is_ours and message["content"].get("execution_state") == "idle"


@pytest.fixture
def port(tmp_path: Path) -> int:
    """Where JupyterLab is told to listen. It refuses to be root unless it is told that too."""
    port = free_port()
    (tmp_path / ".jupyter").mkdir()
    settings = {"ServerApp": {"port": port, "allow_root": True}}
    (tmp_path / ".jupyter" / "jupyter_server_config.json").write_text(json.dumps(settings))
    return port


@pytest.fixture
def notebook(port: int) -> Iterator[Notebook]:
    notebook = Notebook(port)
    yield notebook
    notebook.close()


@pytest.mark.slow
def test_the_guide_does_what_it_shows(read_along: Callable[..., None], port: int, notebook: Notebook) -> None:
    """What a cell of JupyterLab prints is in the log from the moment at which Himalia attached, restarts included."""
    read_along(
        "howto/jupyterlab.md",
        here={"8888": str(port)},
        environment={"JUPYTER_TOKEN": TOKEN},
        also=[r"\d+ s ago"],
        acts={"python notebook": notebook.run_cell, "python notebook restart": notebook.restart},
    )
