"""Who can listen to a kernel: whoever has its connection file, and no other user of the machine."""

from __future__ import annotations

import asyncio
import time

import psutil
import pytest
import zmq
import zmq.asyncio
from zmq.utils.monitor import recv_monitor_message

from himalia.errors import BadRequest
from himalia.jupyter.connection_file import ConnectionInfo
from tests.kernels.hosts import DEADLINE_S, Hosting, hosting, text_of

__all__ = ["hosting"]

pytestmark = pytest.mark.slow

SECRET = "the-secret-of-this-cell"
REFUSED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
REFUSED |= zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_DISCONNECTED


class Eavesdropper:
    """A socket of another user: it knows where a kernel publishes, and has no keys or has wrong ones."""

    def __init__(self, connection: ConnectionInfo, *, with_wrong_keys: bool = False) -> None:
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.linger = 0
        if with_wrong_keys:
            public, secret = zmq.curve_keypair()
            self._socket.curve_publickey, self._socket.curve_secretkey = public, secret
            self._socket.curve_serverkey = public
        self._socket.subscribe(b"")
        self._monitor = self._socket.get_monitor_socket(REFUSED | zmq.EVENT_HANDSHAKE_SUCCEEDED)
        self._socket.connect(connection.endpoint("iopub"))

    async def is_refused(self) -> bool:
        event = await asyncio.wait_for(recv_monitor_message(self._monitor), DEADLINE_S)
        return bool(event["event"] & REFUSED)

    async def hears(self, text: str, within_s: float) -> bool:
        until_s = time.monotonic() + within_s
        while (left_s := until_s - time.monotonic()) > 0 and await self._socket.poll(int(left_s * 1000)):
            if text.encode() in b"".join(await self._socket.recv_multipart()):
                return True
        return False

    async def hears_anything(self) -> bool:
        return bool(await self._socket.poll(200))

    def close(self) -> None:
        self._socket.disable_monitor()
        self._context.destroy(linger=0)


@pytest.mark.parametrize("with_wrong_keys", [False, True])
async def test_who_has_no_keys_hears_nothing(hosting: Hosting, with_wrong_keys: bool) -> None:
    """Ports alone are of no use: the connection is refused, and nothing of what the kernel says comes by it."""
    await hosting.open()
    kernel = await hosting.start()
    assert kernel.process is not None
    other = Eavesdropper(kernel.process.connection, with_wrong_keys=with_wrong_keys)
    try:
        assert await other.is_refused()
        assert text_of(await hosting.run(kernel, f"print({SECRET!r})")) == f"{SECRET}\n"
        assert not await other.hears_anything()
    finally:
        other.close()


async def test_what_is_off_is_open(hosting: Hosting) -> None:
    """With ``off`` the same socket hears all of it: the test above looks at the right port."""
    await hosting.open(kernel_encryption="off")
    kernel = await hosting.start()
    assert kernel.process is not None
    other = Eavesdropper(kernel.process.connection)
    try:
        assert not await other.is_refused()
        await hosting.run(kernel, f"print({SECRET!r})")
        assert await other.hears(SECRET, DEADLINE_S)
    finally:
        other.close()


async def test_the_keys_are_for_their_user_only(hosting: Hosting) -> None:
    """They are in the connection file, which others cannot read, and in no command line or environment."""
    await hosting.open(kernel_encryption="required")
    kernel = await hosting.start()
    assert kernel.process is not None
    key = kernel.process.connection.curve_secretkey
    assert key is not None
    directory = kernel.process.directory
    # But for the sticky bit, which jupyter_client sets.
    assert [path.stat().st_mode & 0o777 for path in (directory / "connection.json", directory)] == [
        0o600,
        0o700,
    ]
    about = psutil.Process(kernel.process.pid)
    assert key not in " ".join([*about.cmdline(), *about.environ().values()])


async def test_a_kernel_stays_encrypted_over_a_crash_and_a_restart(hosting: Hosting) -> None:
    """The next server has the keys from the connection file; a restart by it, and a cell after that, use the same."""
    server = await hosting.serve(kernel_encryption="required")
    kernel_id = (await server.ask("start"))["kernel"]
    server.kill()
    await hosting.open(kernel_encryption="off")
    kernel = hosting.host.get(kernel_id)
    assert kernel.process is not None
    keys = kernel.process.connection.curve_publickey
    assert keys is not None
    assert text_of(await hosting.run(kernel, "print('again')")) == "again\n"
    await kernel.restart()
    hosting.track()
    assert kernel.process.connection.curve_publickey == keys
    assert text_of(await hosting.run(kernel, "print('and again')")) == "and again\n"


async def test_a_kernel_that_cannot_encrypt(hosting: Hosting) -> None:
    """It runs in the clear where it may, and is refused with a sentence where encryption is required."""
    await hosting.open()
    kernel = await hosting.start("xpython-raw")
    assert kernel.process is not None
    assert not kernel.process.connection.is_encrypted
    assert text_of(await hosting.run(kernel, "print('open')")) == "open\n"
    await hosting.close()
    await hosting.open(kernel_encryption="required")
    with pytest.raises(BadRequest, match="'xpython-raw' does not declare CURVE encryption"):
        await hosting.start("xpython-raw")
    assert not list(hosting.runtime.glob("*/kernels/*"))


async def test_an_open_kernel_is_not_attached_where_encryption_is_required(hosting: Hosting) -> None:
    """What is sent to it could be read, so it is refused like any other."""
    path, _ = await hosting.start_foreign()
    await hosting.open(kernel_encryption="required")
    with pytest.raises(BadRequest, match="is not encrypted"):
        await hosting.host.attach(str(path))
