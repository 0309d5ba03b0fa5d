"""TLS: the same interfaces, and certificates that cannot be used."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from himalia.errors import ConfigurationError
from tests.server.identity.credentials import TOKEN, Serve
from tests.servers import ask, hear_events, publish

NAME = "broker.example.com"
HSTS = "strict-transport-security"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    directory = tmp_path_factory.mktemp("tls")
    certificate, key = directory / "cert.pem", directory / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = "-subj /CN=himalia -addext subjectAltName=IP:127.0.0.1"
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *names.split(), *files], check=True, capture_output=True)
    return certificate, key


async def test_tls_serves_rest_and_websocket(serve: Serve, certificate: tuple[Path, Path]) -> None:
    """With a certificate the same interfaces are https and wss, and the cookie is for https alone."""
    server = serve(token=TOKEN, ssl_certfile=certificate[0], ssl_keyfile=certificate[1])
    trusting = ssl.create_default_context(cafile=str(certificate[0]))
    assert server.url.startswith("https://")
    with server.http(verify=trusting, headers=server.headers) as http:
        assert http.post("/topics", json={"name": "orders"}).status_code == 201
        cookie = http.get("/", params={"token": TOKEN}).headers["set-cookie"]
        assert cookie.startswith(f"__Host-himalia_session_{server.port}=") and "; Secure" in cookie
    async with server.connect(ssl=trusting) as publisher, server.connect(ssl=trusting) as viewer:
        await ask(viewer, type="subscribe", topic="orders", client_id="v")
        # More than one TLS record, in both directions.
        await publish(publisher, "orders", "x" * 500_000, 2)
        assert [len(str(e["message"]["payload"])) for e in await hear_events(viewer, 2)] == [500_000, 1]


async def broken() -> Any:
    raise ZeroDivisionError


@pytest.mark.parametrize(("name", "is_told"), [(NAME, True), ("localhost", False), ("127.0.0.1", False)])
async def test_hsts_is_sent_over_tls(
    serve: Serve, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, name: str, is_told: bool
) -> None:
    """With every answer, except for names of the browser's own machine: HSTS covers all ports of a name."""
    server = serve(token=TOKEN, ssl_certfile=certificate[0], ssl_keyfile=certificate[1], allowed_hosts=[NAME])
    monkeypatch.setattr(server.context.log, "topics", broken)
    trusting = ssl.create_default_context(cafile=str(certificate[0]))
    shown = {"Host": f"{name}:{server.port}"}
    with server.http(verify=trusting, headers=server.headers | shown) as http:
        # The server closes the connection after a bug, so that one is last.
        answers = [http.get("/health"), http.get("/nothing"), http.put("/topics"), http.get("/topics")]
    assert [answer.status_code for answer in answers] == [200, 404, 405, 500]
    assert {HSTS in answer.headers for answer in answers} == {is_told}
    with pytest.raises(InvalidStatus) as refused:
        await connect(
            f"wss://{name}:{server.port}/ws", ssl=trusting, host="127.0.0.1", server_hostname="127.0.0.1"
        )
    assert refused.value.response.status_code == 401
    assert (HSTS in refused.value.response.headers) is is_told


@pytest.mark.parametrize("wrong", ["missing", "garbage", "swapped"])
def test_a_certificate_that_cannot_be_used_is_explained(
    serve: Serve, certificate: tuple[Path, Path], tmp_path: Path, wrong: str
) -> None:
    """Starting fails with a sentence, not with a traceback of the TLS library."""
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("hello")
    cert, key = certificate
    files = {"missing": (tmp_path / "no.pem", key), "garbage": (garbage, key), "swapped": (key, cert)}[wrong]
    with pytest.raises(ConfigurationError, match="certificate or key"):
        serve(token=TOKEN, ssl_certfile=files[0], ssl_keyfile=files[1])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1])
def test_old_versions_of_tls_are_refused(
    serve: Serve, certificate: tuple[Path, Path], version: ssl.TLSVersion
) -> None:
    """TLS 1.2 is the oldest that is spoken."""
    server = serve(token=TOKEN, ssl_certfile=certificate[0], ssl_keyfile=certificate[1])
    client = ssl.create_default_context(cafile=str(certificate[0]))
    client.set_ciphers("ALL:@SECLEVEL=0")
    client.minimum_version = client.maximum_version = version
    with server.raw_socket() as plain, pytest.raises(ssl.SSLError):
        client.wrap_socket(plain, server_hostname="127.0.0.1")
    client.minimum_version = client.maximum_version = ssl.TLSVersion.TLSv1_2
    with server.raw_socket() as plain, client.wrap_socket(plain, server_hostname="127.0.0.1") as spoken:
        assert spoken.version() == "TLSv1.2"
