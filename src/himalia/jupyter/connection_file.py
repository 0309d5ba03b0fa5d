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
    """The content of a connection file. Fields are those of the Jupyter messaging protocol."""

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
        """Set the keys of a socket, if this kernel encrypts."""
        if self.curve_publickey and self.curve_secretkey:
            socket.curve_secretkey = self.curve_secretkey.encode()
            socket.curve_publickey = self.curve_publickey.encode()
            socket.curve_serverkey = self.curve_publickey.encode()


def read_connection_file(path: Path) -> ConnectionInfo:
    """Read a connection file. Raises ``BadRequest`` with what is wrong with it."""
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
            f"{path} has the unknown signature scheme {info.signature_scheme!r}; start the kernel with hmac-sha256"
        )
    return info


def runtime_connection_files() -> list[Path]:
    """List the connection files in Jupyter's runtime directory, the newest first. Their kernels may have ended."""
    found = [path for path in Path(jupyter_runtime_dir()).glob("kernel-*.json") if path.is_file()]
    return sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)


def find_connection_file(name: str) -> Path:
    """Find a connection file by its path or, like Jupyter, by its name or id in the runtime directory."""
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
