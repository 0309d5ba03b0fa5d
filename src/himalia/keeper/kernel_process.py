"""The process of one of our own kernels: started, signalled and ended by jupyter_client, under a keeper."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from jupyter_client.manager import AsyncKernelManager

from himalia.errors import BadRequest, KernelFailed
from himalia.jupyter.connection_file import ConnectionInfo, read_connection_file
from himalia.keeper.client import KeeperClient, KernelNotStarted, Spooled, read_spool, remove_stale_directory
from himalia.keeper.launch import kernel_environment, transport_encryption
from himalia.keeper.limits import Limits
from himalia.keeper.provisioner import KeeperProvisioner, detach_manager, reattach
from himalia.settings import Settings

EXCERPT_MAX = 600
PORT_TAKEN = os.strerror(errno.EADDRINUSE)
"""What a kernel writes, whatever its language: the text is the system's, and ZeroMQ has the same."""


class KernelProcess:
    """The process of one of our own kernels. Lives on the event loop that started it or attached to it again.

    ``exited`` has the return code of the process that runs now, or ran last; each restart makes a new future.
    """

    def __init__(self, manager: AsyncKernelManager, provisioner: KeeperProvisioner) -> None:
        self._manager = manager
        self._provisioner = provisioner
        self.unspooled = 0
        """How many of the last messages of a process that has ended are not in its spool: the disk was full."""
        self._keeper, self.connection, self.exited = self._bind()

    @classmethod
    async def start(
        cls,
        kernel_id: str,
        name: str,
        directory: Path,
        settings: Settings,
        *,
        cwd: Path | None = None,
        env: dict[str, str] | None = None,
        owner: str | None = None,
        specs: KernelSpecManager,
        descriptors: int = 0,
        keeps_files: bool = True,
    ) -> KernelProcess:
        """Start a kernel of this kernelspec, with the variables of ``env`` in addition to the server's own.

        Raises ``BadRequest`` for an unknown one, ``KernelFailed`` otherwise.
        """
        manager = AsyncKernelManager(kernel_name=name, kernel_id=kernel_id, kernel_spec_manager=specs)
        try:
            spec = manager.kernel_spec
        except NoSuchKernel:
            spec = None
        if spec is None:
            known = ", ".join(sorted(specs.find_kernel_specs())) or "none: pip install ipykernel"
            raise BadRequest(f"there is no kernelspec {name!r}; installed are: {known}", kernel_name=name)
        manager.transport_encryption = transport_encryption(name, spec, settings.kernel_encryption)
        provisioner = KeeperProvisioner(
            kernel_id=kernel_id,
            kernel_spec=spec,
            parent=manager,
            directory=str(directory),
            owner=owner or "",
            keep_s=settings.kernel_keep_s,
            busy_keep_s=settings.kernel_busy_keep_s,
            keeps_files=keeps_files,
            memory_max=settings.kernel_memory_max,
            cpu_s_max=settings.kernel_cpu_s_max,
            descriptors=descriptors,
            spool_bytes_max=settings.kernel_spool_bytes,
        )
        manager.provisioner = provisioner
        options: dict[str, Any] = {} if cwd is None else {"cwd": str(cwd)}
        options["env"] = kernel_environment(os.environ, settings.kernel_env_keep, env)
        starting = asyncio.ensure_future(manager.start_kernel(**options))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # A process that is half started would run without an owner.
            await asyncio.wait({starting})
            if not starting.cancelled() and starting.exception() is None:
                await manager.shutdown_kernel(now=True)
            raise
        except KernelNotStarted as error:
            raise KernelFailed(
                f"{error.message}{_format_excerpt(error.data.get('log', ''))}", kernel_id=kernel_id
            ) from None
        except OSError as error:
            raise KernelFailed(f"kernel {name!r} cannot be started: {error}", kernel_id=kernel_id) from None
        return cls(manager, provisioner)

    @classmethod
    async def find(cls, directory: Path, specs: KernelSpecManager, descriptors: int = 0) -> KernelProcess:
        """Find the kernel whose keeper lives in a directory. Raises ``KeeperGone`` if none does."""
        manager = await reattach(directory, kernel_spec_manager=specs)
        assert isinstance(manager.provisioner, KeeperProvisioner)
        # For a restart: the next keeper inherits the limit of this server, not of the one that was here before.
        manager.provisioner.descriptors = descriptors
        return cls(manager, manager.provisioner)

    @property
    def directory(self) -> Path:
        """The directory of its keeper, with its spool."""
        return self._keeper.directory

    @property
    def keeper_socket(self) -> str:
        return self._keeper.info.socket

    @property
    def kernel_id(self) -> str:
        return str(self._manager.kernel_id)

    @property
    def name(self) -> str:
        return str(self._manager.kernel_name)

    @property
    def owner(self) -> str | None:
        """The caller whose kernel it is, as the keeper remembers it; None if that is not known."""
        return self._provisioner.owner or None

    @property
    def pid(self) -> int | None:
        return self._provisioner.pid

    @property
    def limits(self) -> Limits:
        """Those that it was started with, by whichever server."""
        return Limits(self._provisioner.memory_max, self._provisioner.cpu_s_max)

    @property
    def returncode(self) -> int | None:
        return self.exited.result() if self.exited.done() else None

    @property
    def is_kept(self) -> bool:
        """Whether the keeper is there: then its spool has all that the process said before ``exited`` is done."""
        keeper = self._provisioner.keeper
        return keeper is not None and keeper.is_connected

    def read_spool(self, after: int) -> Iterator[Spooled]:
        """Yield the messages that the keeper has stored after that number. Blocks."""
        return read_spool(self.directory, after)

    async def wait_until_listening(self) -> None:
        """Wait until the keeper receives what the process publishes, or the process has ended."""
        keeper = self._provisioner.keeper
        if keeper is not None:
            await keeper.wait_until_listening()

    def log_excerpt(self) -> str:
        """Return the end of what the kernel wrote to its terminal, if it had one."""
        keeper = self._provisioner.keeper
        return _clip(keeper.log_tail() if keeper is not None else self._provisioner.last_log)

    @property
    def failed_on_port_conflict(self) -> bool:
        """Whether it ended because another program took a port between its choice and the kernel's start."""
        return bool(self.returncode) and PORT_TAKEN in self.log_excerpt()

    async def interrupt(self) -> None:
        await self._manager.interrupt_kernel()

    async def restart(self) -> None:
        """End the process and start it again, on the same ports. Raises ``KernelFailed``."""
        await self._start_again(self._manager.restart_kernel(now=False))

    async def restart_on_new_ports(self) -> None:
        """Start the process, which has ended, again on other ports. Raises ``KernelFailed``."""
        self._provisioner.leave_ports()
        starting = asyncio.ensure_future(self._start_again(self._manager.restart_kernel(now=True)))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            # A process that is half started could not be stopped.
            await asyncio.wait({starting})
            raise

    async def _start_again(self, starting: Awaitable[None]) -> None:
        try:
            await starting
        except (KernelNotStarted, OSError) as error:
            raise KernelFailed(
                f"kernel {self.name!r} cannot be started again: {error}{_format_excerpt(self.log_excerpt())}",
                kernel_id=self.kernel_id,
            ) from None
        self.unspooled = 0
        self._keeper, self.connection, self.exited = self._bind()

    async def stop(self, before_release: Callable[[KeeperClient], Awaitable[None]] | None = None) -> None:
        """End the process and its keeper, and remove what they left.

        ``before_release`` is awaited when the process has ended, and before its spool is removed.
        """
        self._provisioner.before_release = before_release
        await self._manager.shutdown_kernel(now=self.returncode is not None)
        # A failed restart may have left it.
        await asyncio.to_thread(remove_stale_directory, self.directory)

    async def detach(self) -> None:
        """Leave it to its keeper."""
        await detach_manager(self._manager)

    def _bind(self) -> tuple[KeeperClient, ConnectionInfo, asyncio.Future[int]]:
        """Return the keeper of the process that was just started or found, its connection, and its exit to come."""
        keeper = self._provisioner.keeper
        assert keeper is not None
        exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def on_exit(returncode: int) -> None:
            self.unspooled = keeper.lost
            exited.set_result(returncode)

        keeper.add_exit_callback(on_exit)
        return keeper, read_connection_file(Path(keeper.info.connection_file)), exited


def _format_excerpt(log: str) -> str:
    return f"; it said: {_clip(log)}" if log.strip() else ""


def _clip(log: str) -> str:
    log = log.strip()
    return log if len(log) <= EXCERPT_MAX else f"…{log[-EXCERPT_MAX:]}"
