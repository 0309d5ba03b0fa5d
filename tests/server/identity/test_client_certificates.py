"""TLS client certificates: asked for by the server, presented by clients; and HSTS."""

from __future__ import annotations

import re
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from himalia.client import Client
from himalia.errors import ConfigurationError, ConnectionFailed
from himalia.spark.connector.address import ServerAddress
from himalia.spark.connector.http import ServerConnection
from himalia.tls import client_context
from tests.cli.command import assert_sentence, himalia
from tests.server.raw_clients import Wire
from tests.server.server_process import ServerProcess
from tests.servers import RunningServer

MANUAL = Path(__file__).parents[3] / "docs" / "operations.md"
TOKEN = "correct-horse-battery-staple"


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
    names = "-subj /CN=himalia -addext subjectAltName=IP:127.0.0.1"
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*command.split(), *names.split(), *files], check=True, capture_output=True)
    return certificate, key


def test_a_required_client_certificate_is_asked_for(
    serve: Callable[..., RunningServer], certificate: tuple[Path, Path]
) -> None:
    """Without one of the named authorities there is no connection; with one it is answered, and told of HSTS."""
    cert, key = certificate
    server = serve(
        auth=False,
        ssl_certfile=cert,
        ssl_keyfile=key,
        ssl_ca_certs=cert,
        ssl_cert_reqs="required",
        allowed_hosts=["broker.example.com"],
    )
    without, having = (ssl.create_default_context(cafile=str(cert)) for _ in range(2))
    having.load_cert_chain(cert, key)
    with server.http(verify=having) as http:
        answer = http.get("/health", headers={"Host": "broker.example.com"})
        assert answer.headers["strict-transport-security"].startswith("max-age=")
    with server.http(verify=without) as http, pytest.raises(httpx.TransportError):
        http.get("/health")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ssl_cert_reqs": "required"}, "need ssl_certfile"),
        ({"ssl_keyfile": "key"}, "need ssl_certfile"),
        ({"ssl_ca_certs": "cert"}, "need ssl_certfile"),
        ({"ssl_certfile": "cert", "ssl_keyfile": "key", "ssl_cert_reqs": "optional"}, "names no authority"),
        ({"ssl_certfile": "cert", "ssl_keyfile": "key", "ssl_ca_certs": "cert"}, "none is requested"),
    ],
    ids=["no TLS", "a key alone", "authorities alone", "no authority", "not asked for"],
)
def test_settings_that_would_ask_for_nothing_are_refused(
    serve: Callable[..., RunningServer], certificate: tuple[Path, Path], given: dict[str, str], said: str
) -> None:
    """An operator who expects client certificates, or TLS at all, does not get a server without."""
    files = dict(zip(("cert", "key"), certificate, strict=True))
    with pytest.raises(ConfigurationError, match=said):
        serve(**{name: files.get(value, value) for name, value in given.items()})


def test_a_handshake_that_never_begins_is_cut_off(
    serve: Callable[..., RunningServer], certificate: tuple[Path, Path]
) -> None:
    """After ``handshake_timeout_s``, not after a minute."""
    server = serve(
        auth=False, ssl_certfile=certificate[0], ssl_keyfile=certificate[1], handshake_timeout_s=0.3
    )
    with Wire(server.port) as wire:
        assert wire.until_end() == b""


@pytest.mark.slow
def test_listening_beyond_loopback_without_tls_is_warned_of(tmp_path: Path) -> None:
    """An operator learns it from the first lines of the log."""
    with ServerProcess(tmp_path, "--host", "0.0.0.0", "--no-kernels") as server:
        assert "without TLS" in server.stderr()


# Clients that present one, made as docs/operations.md says


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what the manual's commands make, and a certificate for the server."""
    directory = tmp_path_factory.mktemp("certificates")
    section = MANUAL.read_text().partition("### Client certificates\n")[2]
    commands = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)[0]
    commands += (
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=himalia "
        "-addext subjectAltName=IP:127.0.0.1 -keyout server.key -out server.pem\n"
    )
    subprocess.run(["sh", "-e", "-c", commands], cwd=directory, check=True, capture_output=True)
    return directory


@pytest.fixture(scope="module")
def server(serve_all: Callable[..., RunningServer], files: Path) -> RunningServer:
    return serve_all(
        token=TOKEN,
        ssl_certfile=files / "server.pem",
        ssl_keyfile=files / "server.key",
        ssl_ca_certs=files / "ca.pem",
        ssl_cert_reqs="required",
    )


@pytest.fixture
def trusting(server: RunningServer, files: Path, monkeypatch: pytest.MonkeyPatch) -> RunningServer:
    """The server, whose certificate clients trust."""
    monkeypatch.setenv("SSL_CERT_FILE", str(files / "server.pem"))
    return server


@pytest.fixture
def presenting(trusting: RunningServer, files: Path, monkeypatch: pytest.MonkeyPatch) -> RunningServer:
    """The server, to which clients present a certificate."""
    monkeypatch.setenv("HIMALIA_CLIENT_CERTFILE", str(files / "reports.pem"))
    monkeypatch.setenv("HIMALIA_CLIENT_KEYFILE", str(files / "reports.key"))
    return trusting


async def test_clients_present_the_certificate_of_the_environment(presenting: RunningServer) -> None:
    """Over REST and WebSocket, from Python, the command line and Spark."""
    async with Client(presenting.url, TOKEN) as client:
        await client.create_topic("orders", exist_ok=True)
        await client.publish("orders", 1)
    listed = himalia("topics", "list", "--url", presenting.url, "--token", TOKEN)
    assert listed.returncode == 0 and "orders" in listed.stdout
    with ServerConnection(ServerAddress(presenting.url, TOKEN)) as connection:
        names = connection.request(
            "GET", "/topics", lambda found: [topic["name"] for topic in found["topics"]]
        )
        assert names == ["orders"]


async def test_without_a_certificate_the_variable_is_named(trusting: RunningServer) -> None:
    """The handshake fails, and the sentence says what the server asks for."""
    async with Client(trusting.url, TOKEN) as client:
        with pytest.raises(ConnectionFailed, match="HIMALIA_CLIENT_CERTFILE"):
            await client.topics()
        with pytest.raises(ConnectionFailed, match="HIMALIA_CLIENT_CERTFILE"):
            async with client.subscribe("orders"):
                pass
    with (
        ServerConnection(ServerAddress(trusting.url, TOKEN)) as connection,
        pytest.raises(ConnectionFailed, match="HIMALIA_CLIENT_CERTFILE"),
    ):
        connection.request("GET", "/topics", lambda found: found)
    assert_sentence(
        himalia("topics", "list", "--url", trusting.url, "--token", TOKEN), 1, "HIMALIA_CLIENT_CERTFILE"
    )


def test_a_certificate_is_no_key(presenting: RunningServer) -> None:
    """Who has one and no key is a stranger."""
    with presenting.http(verify=client_context()) as http:
        assert http.get("/topics").status_code == 401
        assert http.get("/health").json() == {"status": "ok"}


@pytest.mark.parametrize("wrong", ["missing", "garbage", "swapped", "key alone", "encrypted"])
def test_a_certificate_that_cannot_be_used_is_explained(
    files: Path, wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sentence with the files and the variables; nothing is asked at the terminal."""
    certificate, key, garbage = files / "reports.pem", files / "reports.key", tmp_path / "garbage.pem"
    garbage.write_text("hello")
    if wrong == "encrypted":
        command = [
            "openssl",
            "pkey",
            "-in",
            key,
            "-aes256",
            "-passout",
            "pass:x",
            "-out",
            tmp_path / "locked",
        ]
        subprocess.run(command, check=True, capture_output=True)
    given = {
        "missing": (files / "none.pem", key),
        "garbage": (garbage, key),
        "swapped": (key, certificate),
        "key alone": ("", key),
        "encrypted": (certificate, tmp_path / "locked"),
    }[wrong]
    monkeypatch.setenv("HIMALIA_CLIENT_CERTFILE", str(given[0]))
    monkeypatch.setenv("HIMALIA_CLIENT_KEYFILE", str(given[1]))
    with pytest.raises(ConfigurationError, match="HIMALIA_CLIENT_CERTFILE"):
        client_context()
    if wrong == "encrypted":
        monkeypatch.setenv("HIMALIA_CLIENT_KEYFILE_PASSWORD", "x")
        client_context()
