"""A kernel in this process that says only what a test has it say: to forge, to overdo, to leave things out."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio

from himalia.jupyter.wire import KernelMessage, Wire

KEY = b"a key of its own"


class FakeKernel:
    """Answers ``kernel_info_request`` and heartbeats; everything else is up to the test."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.wire = Wire(KEY)
        self.asked: asyncio.Queue[tuple[str, KernelMessage]] = asyncio.Queue()
        self._context = zmq.asyncio.Context()
        self._iopub = self._bound(zmq.PUB)
        self._routers = {name: self._bound(zmq.ROUTER) for name in ("shell", "control", "stdin")}
        self._heart = self._bound(zmq.REP)
        self._tasks = [asyncio.create_task(self._serve(name)) for name in self._routers]
        self._tasks.append(asyncio.create_task(self._beat()))
        ports = {f"{name}_port": _port(socket) for name, socket in self._routers.items()}
        path.write_text(
            json.dumps(
                {
                    "transport": "tcp",
                    "ip": "127.0.0.1",
                    "key": KEY.decode(),
                    "signature_scheme": "hmac-sha256",
                    "iopub_port": _port(self._iopub),
                    "hb_port": _port(self._heart),
                    "kernel_name": "fake",
                    **ports,
                }
            )
        )

    def _bound(self, kind: int) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.linger = 0
        if kind == zmq.PUB:
            socket.sndhwm = 0
        socket.bind_to_random_port("tcp://127.0.0.1")
        return socket

    async def publish(
        self, msg_type: str, parent: KernelMessage | None = None, *, wire: Wire | None = None, **content: Any
    ) -> KernelMessage:
        """Publish on IOPub, signed by another's key if ``wire`` is given."""
        message, frames = (wire or self.wire).encode(msg_type, content, parent=parent, identities=[b"topic"])
        await self._iopub.send_multipart(frames)
        return message

    async def publish_frames(self, frames: list[bytes]) -> None:
        await self._iopub.send_multipart(frames)

    async def reply(
        self, request: KernelMessage, msg_type: str, *, port: str = "shell", **content: Any
    ) -> None:
        _, frames = self.wire.encode(msg_type, content, parent=request, identities=request.identities)
        await self._routers[port].send_multipart(frames)

    async def next_request(self) -> KernelMessage:
        """The next request that is not for the kernel's information."""
        return (await asyncio.wait_for(self.asked.get(), 30))[1]

    async def _serve(self, name: str) -> None:
        while True:
            message = self.wire.decode(await self._routers[name].recv_multipart())
            assert isinstance(message, KernelMessage)
            if message.msg_type == "kernel_info_request":
                await self.publish("status", message, execution_state="busy")
                await self.reply(message, "kernel_info_reply", port=name, status="ok")
                await self.publish("status", message, execution_state="idle")
            else:
                self.asked.put_nowait((name, message))

    async def _beat(self) -> None:
        while True:
            await self._heart.send_multipart(await self._heart.recv_multipart())

    def stop_heart(self) -> None:
        self._tasks[-1].cancel()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._context.destroy(linger=0)


def _port(socket: zmq.asyncio.Socket) -> int:
    return int(socket.getsockopt(zmq.LAST_ENDPOINT).decode().rstrip("\0").rpartition(":")[2])
