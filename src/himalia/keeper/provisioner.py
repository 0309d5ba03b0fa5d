"""A provisioner of jupyter_client: starts, signals, restarts and ends kernels through a keeper."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from jupyter_client.connect import KernelConnectionInfo, LocalPortCache
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.localinterfaces import is_local_ip
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning.local_provisioner import LocalProvisioner
from traitlets import Bool, Float, Integer, Unicode, default

from himalia.jupyter.connection_file import PORTS
from himalia.keeper import kernel_directory
from himalia.keeper.client import (
    KeeperClient,
    KeeperGone,
    KernelNotStarted,
    remove_stale_directory,
)
from himalia.keeper.launch import kernel_command, kernel_environment
from himalia.keeper.ports import PortBlock, find_ports, reserve
from himalia.keeper.server_protocol import BUSY_KEEP_S, GRACE_S, KEEP_S, SPOOL_BYTES_MAX, Launch
from himalia.local_server import make_private, runtime_directory

_IGNORED = {"stdin", "stdout", "stderr", "independent", "kernel_id", "extra_arguments", "start_new_session"}
"""Arguments of a launch that the keeper decides, or that jupyter_client has used already."""
_REMEMBERED = ("env", "cwd", "extra_arguments")
"""Arguments of ``start_kernel`` that a restart by a later server repeats."""


class KeeperProvisioner(LocalProvisioner):
    """Starts each kernel under a keeper of its own, and after a restart the next one in the same directory.

    jupyter_client finds it as ``himalia-keeper``; or set it as a manager's ``provisioner`` before ``start_kernel``.
    The client of the keeper belongs to the event loop in which the kernel was started.
    """

    directory = Unicode(
        config=True, help="The directory of the kernel; by default under Himalia's runtime directory."
    )
    owner = Unicode("", config=True, help="The caller whose kernel it is; empty for none.")
    keep_s = Float(KEEP_S, config=True, help="Seconds to keep the kernel while no server is connected.")
    busy_keep_s = Float(
        BUSY_KEEP_S, config=True, help="The same while it is busy, if that is longer; 0 for no limit."
    )
    keeps_files = Bool(
        True, config=True, help="Whether a later server can read what the keeper leaves at its end."
    )
    spool_bytes_max = Integer(SPOOL_BYTES_MAX, config=True, help="The most bytes of its output on disk.")
    memory_max = Integer(0, config=True, help="Most bytes of address space; 0 for no limit.")
    cpu_s_max = Integer(0, config=True, help="Most seconds of CPU time; 0 for no limit.")
    descriptors = Integer(
        0, config=True, help="Open files, which it may raise itself; 0 for those of its keeper."
    )
    grace_s = Float(
        GRACE_S, config=True, help="Seconds from SIGTERM to SIGKILL when the keeper ends the kernel."
    )

    keeper: KeeperClient | None = None
    before_release: Callable[[KeeperClient], Awaitable[None]] | None = None
    """Awaited when the kernel has ended and before its spool is removed, to read the rest of it."""
    last_log: str = ""
    """What the last kernel had written to stdout and stderr when it was released or could not be started."""

    _was_waited_for = False
    _launch_args: dict[str, Any] | None = None
    _port_block: PortBlock | None = None

    @default("directory")
    def _default_directory(self) -> str:
        return str(runtime_directory() / "kernels" / str(self.kernel_id))

    def adopt(self, keeper: KeeperClient) -> None:
        """Manage the kernel of a keeper that is connected already."""
        self.keeper = keeper
        self.directory = str(keeper.directory)
        self.pid = self.pgid = keeper.info.pid
        self.cwd = keeper.info.cwd
        self._was_waited_for = False

    def adopt_ports(self, manager: AsyncKernelManager) -> None:
        """Keep the ports of the kernel for a restart, so that no other kernel chooses them."""
        self.ports_cached = manager.cache_ports
        LocalPortCache.instance().currently_used_ports.update(manager.ports)
        self._port_block = reserve(manager.shell_port)

    def leave_ports(self) -> None:
        """Have the next launch choose other ports: another program bound one of these before the kernel did."""
        manager = self.parent
        if manager is None or not self.ports_cached:
            return
        for port in manager.ports:
            LocalPortCache.instance().return_port(port)
        self.release_ports()
        self.ports_cached = False

    # Called by jupyter_client

    @property
    def has_process(self) -> bool:
        return self.keeper is not None and not self._was_waited_for

    async def poll(self) -> int | None:
        return self.keeper.returncode if self.keeper is not None else 0

    async def wait(self) -> int | None:
        if self.keeper is None:
            return 0
        returncode = await self.keeper.wait()
        self._was_waited_for = True
        return returncode

    async def send_signal(self, signum: int) -> None:
        """Signal the kernel's process group; nothing happens if it has ended, or its keeper has."""
        if self.keeper is None or self.keeper.returncode is not None:
            return
        try:
            await self.keeper.signal(signum)
        except KeeperGone:
            if self.keeper.returncode is None:
                raise

    async def kill(self, restart: bool = False) -> None:
        await self.send_signal(signal.SIGKILL)

    async def terminate(self, restart: bool = False) -> None:
        await self.send_signal(signal.SIGTERM)

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Put the connection file into the kernel's directory, unless the manager has one already."""
        if kwargs.get("env") is None:
            # A kernel of 0.1 that is restarted, or a manager without one: jupyter_client would pass on its whole own.
            kwargs["env"] = kernel_environment(os.environ)
        self._launch_args = {name: kwargs[name] for name in _REMEMBERED if name in kwargs}
        make_private(Path(self.directory))
        if self.parent is not None and not self.parent.connection_file:
            self.parent.connection_file = str(Path(self.directory) / kernel_directory.CONNECTION_FILE)
        self._choose_ports()
        return await super().pre_launch(**kwargs)

    def _choose_ports(self) -> None:
        """Choose ports that the system assigns to no other program; if there are none, jupyter_client chooses."""
        manager = self.parent
        if manager is None or not manager.cache_ports or self.ports_cached or not is_local_ip(manager.ip):
            return
        self._port_block = find_ports(manager.ip)
        if self._port_block is not None:
            for name, port in zip(PORTS, self._port_block.ports, strict=True):
                setattr(manager, f"{name}_port", port)
            self.ports_cached = True

    def release_ports(self) -> None:
        """Let other kernels choose the ports, as soon as no program listens there."""
        block, self._port_block = self._port_block, None
        if block is not None:
            block.release()

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> KernelConnectionInfo:
        """Start a keeper and its kernel. Raises ``KernelNotStarted`` if the command cannot be run."""
        env, cwd = kwargs.pop("env"), kwargs.pop("cwd", None)
        unknown = kwargs.keys() - _IGNORED
        if unknown:
            raise TypeError(f"a kernel under a keeper cannot be started with {', '.join(sorted(unknown))}")
        await self._release(keep_files=True)
        directory = Path(self.directory)
        try:
            self.adopt(await KeeperClient.start(directory, self._launch(cmd, env, cwd)))
        except BaseException as error:
            if isinstance(error, KernelNotStarted):
                self.last_log = error.data["log"]
            if kernel_directory.read_info(directory) is None:
                # No kernel was ever kept here.
                remove_stale_directory(directory)
            raise
        if self.parent is not None:
            # The file lives as long as the kernel, which may outlive the manager, which would remove it.
            self.parent._connection_file_written = False
        return self.connection_info

    def _launch(self, cmd: list[str], env: dict[str, str], cwd: Any) -> Launch:
        manager, spec = self.parent, self.kernel_spec
        assert manager is not None, (
            "a kernel is started by its manager, which has written the connection file"
        )
        return Launch(
            kernel_id=str(self.kernel_id),
            argv=kernel_command([os.path.expanduser(part) for part in cmd]),
            env=dict(env),
            cwd=os.path.abspath(os.path.expanduser(cwd or os.getcwd())),
            connection_file=os.path.realpath(manager.connection_file),
            kernel_name=manager.kernel_name,
            owner=self.owner,
            display_name=spec.display_name,
            interrupt_mode=spec.interrupt_mode,
            launch={
                "args": {name: _plain(value) for name, value in (self._launch_args or {}).items()},
                "kernel_spec": {**spec.to_dict(), "resource_dir": spec.resource_dir},
                "keep_s": self.keep_s,
                "busy_keep_s": self.busy_keep_s,
                "memory_max": self.memory_max,
                "cpu_s_max": self.cpu_s_max,
                "spool_bytes_max": self.spool_bytes_max,
                "grace_s": self.grace_s,
            },
            keep_s=self.keep_s,
            busy_keep_s=self.busy_keep_s,
            keeps_files=self.keeps_files,
            memory_max=self.memory_max,
            cpu_s_max=self.cpu_s_max,
            descriptors=self.descriptors,
            spool_bytes_max=self.spool_bytes_max,
            grace_s=self.grace_s,
        )

    async def cleanup(self, restart: bool = False) -> None:
        """Release the keeper. For a restart the spool stays, and the next keeper continues it."""
        await self._release(keep_files=restart)
        if not restart:
            self.release_ports()
        await super().cleanup(restart=restart)

    async def _release(self, *, keep_files: bool) -> None:
        keeper, self.keeper = self.keeper, None
        if keeper is None:
            return
        self.last_log = keeper.log_tail()
        try:
            if self.before_release is not None and not keep_files:
                await self.before_release(keeper)
        except BaseException:
            # The spool can still be read: ``list_keeper_directories`` lists it.
            await keeper.release(keep_files=True)
            raise
        await keeper.release(keep_files=keep_files)
        if not keep_files:
            # A keeper that was killed leaves its files.
            remove_stale_directory(keeper.directory)

    async def get_provisioner_info(self) -> dict[str, Any]:
        info = await super().get_provisioner_info()
        info["directory"] = self.directory
        return info

    async def load_provisioner_info(self, provisioner_info: dict[str, Any]) -> None:
        """Connect to the keeper again. Raises ``KeeperGone`` if it has ended."""
        await super().load_provisioner_info(provisioner_info)
        self.adopt(await KeeperClient.connect(Path(provisioner_info["directory"])))


def _plain(value: Any) -> Any:
    """Convert a path to text, since the keeper stores JSON."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value


async def reattach(
    directory: Path, *, kernel_spec_manager: KernelSpecManager | None = None
) -> AsyncKernelManager:
    """Create a manager for the kernel in a directory, which can interrupt, restart and shut down the kernel.

    Raises ``KeeperGone`` if the keeper has ended: what it left can be read with ``read_spool``, then removed. If the
    kernel itself has ended, the manager reports that it is not alive, and can restart it.
    """
    keeper = await KeeperClient.connect(directory)
    try:
        return await _create_manager(keeper, kernel_spec_manager)
    except BaseException:
        await keeper.close()
        raise


async def detach_manager(manager: AsyncKernelManager, *, keep_s: float | None = None) -> None:
    """Detach a manager from its kernel, which a server can adopt again, within ``keep_s`` if that is given.

    The manager cannot be used any more. Its sockets are closed here, since a garbage collector that finds them in the
    wrong order waits without a limit.
    """
    provisioner = manager.provisioner
    if isinstance(provisioner, KeeperProvisioner) and provisioner.keeper is not None:
        keeper, provisioner.keeper = provisioner.keeper, None
        if keep_s is not None:
            await keeper.set_lease(keep_s)
        await keeper.close()
        provisioner.release_ports()
    manager._close_control_socket()
    if manager._created_context:
        manager.context.destroy(linger=0)


async def _create_manager(
    keeper: KeeperClient, kernel_spec_manager: KernelSpecManager | None
) -> AsyncKernelManager:
    launch, info = await keeper.launch(), keeper.info
    more = {} if kernel_spec_manager is None else {"kernel_spec_manager": kernel_spec_manager}
    manager = AsyncKernelManager(
        kernel_name=info.kernel_name, kernel_id=info.kernel_id, connection_file=info.connection_file, **more
    )
    # The kernelspec of the start: it may have been changed or removed since.
    manager._kernel_spec = KernelSpec(**launch["kernel_spec"])
    manager.load_connection_file()
    provisioner = KeeperProvisioner(
        kernel_id=info.kernel_id,
        kernel_spec=manager.kernel_spec,
        parent=manager,
        owner=info.owner,
        keep_s=launch["keep_s"],
        busy_keep_s=launch.get("busy_keep_s", BUSY_KEEP_S),
        memory_max=launch.get("memory_max", 0),
        cpu_s_max=launch.get("cpu_s_max", 0),
        spool_bytes_max=launch["spool_bytes_max"],
        grace_s=launch["grace_s"],
    )
    if not info.keeps_files:
        # A keeper of 0.1 removes its files when its lease is over, and has no longer lease for a busy kernel.
        await keeper.set_lease(max(provisioner.keep_s, BUSY_KEEP_S))
    provisioner.adopt(keeper)
    provisioner.connection_info = manager.get_connection_info()
    provisioner.adopt_ports(manager)
    manager.provisioner = provisioner
    manager._launch_args = launch["args"]
    manager._attempted_start = True
    manager.ready.set_result(None)
    return manager
