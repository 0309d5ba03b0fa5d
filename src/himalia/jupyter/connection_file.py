"""Connection files: where a kernel listens, and the key it signs with."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import msgspec
import zmq
from jupyter_core.paths import jupyter_runtime_dir

from himalia.errors import BadRequest

Port = Literal["shell", "iopub", "stdin", "control", "hb"]
PORTS: tuple[Port, ...] = get_args(Port)


class ConnectionInfo(msgspec.Struct, frozen=True):
    """What a connection file says. Fields are those of the Jupyter messaging protocol."""

    shell_port: int
    iopub_port: int
    stdin_port: int
    control_port: int
    hb_port: int
    transport: str = "tcp"
    ip: str = "127.0.0.1"
    key: str = ""
    signature_scheme: str = "hmac-sha256"
    kernel_name: str = ""
    curve_publickey: str | None = None
    curve_secretkey: str | None = None

    def endpoint(self, port: Port) -> str:
        number = getattr(self, f"{port}_port")
        separator = "-" if self.transport == "ipc" else ":"
        return f"{self.transport}://{self.ip}{separator}{number}"

    @property
    def is_encrypted(self) -> bool:
        return bool(self.curve_publickey and self.curve_secretkey)

    def secure(self, socket: zmq.Socket[bytes]) -> None:
        """Give a socket the keys it needs, if this kernel encrypts."""
        if self.curve_publickey and self.curve_secretkey:
            socket.curve_secretkey = self.curve_secretkey.encode()
            socket.curve_publickey = self.curve_publickey.encode()
            socket.curve_serverkey = self.curve_publickey.encode()


def read_connection_file(path: Path) -> ConnectionInfo:
    """The file's content, or ``BadRequest`` that says what is wrong with it."""
    try:
        info = msgspec.json.decode(path.read_bytes(), type=ConnectionInfo)
    except OSError as error:
        raise BadRequest(
            f"the connection file {path} cannot be read: {error.strerror}; `jupyter --runtime-dir` says where "
            "Jupyter keeps them",
            path=str(path),
        ) from None
    except msgspec.MsgspecError as error:
        raise BadRequest(f"{path} is not a kernel's connection file: {error}", path=str(path)) from None
    if not info.signature_scheme.startswith("hmac-"):
        raise BadRequest(
            f"{path} asks for the signature scheme {info.signature_scheme!r}, which is not known"
        )
    return info


def runtime_connection_files() -> list[Path]:
    """The connection files in Jupyter's runtime directory, the newest first. Their kernels may be gone."""
    found = [path for path in Path(jupyter_runtime_dir()).glob("kernel-*.json") if path.is_file()]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


def find_connection_file(name: str) -> Path:
    """A path as given or, as Jupyter does it, a name or id in the runtime directory."""
    path = Path(name).expanduser()
    if path.exists():
        return path.absolute()
    runtime = Path(jupyter_runtime_dir())
    for candidate in (runtime / name, runtime / f"kernel-{name}.json"):
        if candidate.is_file():
            return candidate
    raise BadRequest(
        f"there is no connection file {name!r}, here or in {runtime}; give the path that the kernel printed",
        path=name,
    )
