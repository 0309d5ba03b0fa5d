"""docs/howto/nginx.md: a real nginx with the configuration of the guide, in front of a real server."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.docs.sessions import free_port

NAMED = "broker.example.com"


@pytest.fixture
def machine() -> str:
    """A name of this machine other than localhost, which every server answers to anyway."""
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        pytest.skip(f"the name of this machine, {name}, leads nowhere: add it to /etc/hosts")
    return name


@pytest.fixture
def nginx(tmp_path: Path) -> Iterator[None]:
    """It runs in the background, so a guide that fails would leave it behind."""
    if shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        pytest.skip("there is no nginx; to run this test: apt-get install nginx-light")
    yield
    pid = tmp_path / "nginx.pid"
    if pid.exists() and (number := pid.read_text().strip()):
        os.kill(int(number), signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.usefixtures("nginx")
def test_the_guide_does_what_it_shows(read_along: Callable[..., None], machine: str, tmp_path: Path) -> None:
    """WebSocket, events one by one, large bodies, the cookie and the refusals: each through nginx and TLS."""
    port = free_port()
    here = {
        "listen 80;": f"listen {free_port()};",
        "listen 443 ssl": f"listen {port} ssl",
        f"https://{NAMED}": f"https://{machine}:{port}",
        NAMED: machine,
        "/etc/ssl/broker": f"{tmp_path}/tls",
        "/var/log/nginx": f"{tmp_path}",
        "/home/ann/broker": f"{tmp_path}",
    }
    changing = [r'"epoch":"\w+"', r"(?<=_session_)\d+=[\w-]{43}", r"Max-Age=\d+"]
    read_along("howto/nginx.md", here=here, also=changing)
