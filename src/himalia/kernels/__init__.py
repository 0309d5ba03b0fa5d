"""Kernel hosting: starts and attaches kernels, schedules their requests, and stores their output in topics.

The names of the IOPub broker can be imported from here too, as before the package ``himalia.iopub`` existed. Every
name is imported on first use, so that the process of a keeper, one for each kernel, stays small.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from himalia.iopub.broker import BrokerConfig, BrokerStats, ExecutionGuard, IopubBroker, RequestContext
    from himalia.iopub.channels import GlobalSubscriber, RequestChannels
    from himalia.iopub.collector import ExecutionCollector
    from himalia.iopub.listener import IopubThread, start_iopub_thread
    from himalia.iopub.result import ExecutionResult
    from himalia.iopub.shell import ShellClient, send_execute_request
    from himalia.jupyter.channels import Channel
    from himalia.jupyter.connection_file import ConnectionInfo, read_connection_file
    from himalia.jupyter.wire import KernelMessage, Wire
    from himalia.kernels.execute import execute_code
    from himalia.kernels.host import KernelHost
    from himalia.kernels.kernel import Kernel
    from himalia.kernels.request import Code

_MODULES = {
    "BrokerConfig": "himalia.iopub.broker",
    "BrokerStats": "himalia.iopub.broker",
    "Channel": "himalia.jupyter.channels",
    "Code": "himalia.kernels.request",
    "ConnectionInfo": "himalia.jupyter.connection_file",
    "ExecutionCollector": "himalia.iopub.collector",
    "ExecutionGuard": "himalia.iopub.broker",
    "ExecutionResult": "himalia.iopub.result",
    "ExecutionStatus": "himalia.protocol.models",
    "GlobalSubscriber": "himalia.iopub.channels",
    "IopubBroker": "himalia.iopub.broker",
    "IopubThread": "himalia.iopub.listener",
    "Kernel": "himalia.kernels.kernel",
    "KernelHost": "himalia.kernels.host",
    "KernelMessage": "himalia.jupyter.wire",
    "RequestChannels": "himalia.iopub.channels",
    "RequestContext": "himalia.iopub.broker",
    "ShellClient": "himalia.iopub.shell",
    "Wire": "himalia.jupyter.wire",
    "execute_code": "himalia.kernels.execute",
    "read_connection_file": "himalia.jupyter.connection_file",
    "send_execute_request": "himalia.iopub.shell",
    "start_iopub_thread": "himalia.iopub.listener",
}

__all__ = [
    "BrokerConfig",
    "BrokerStats",
    "Channel",
    "Code",
    "ConnectionInfo",
    "ExecutionCollector",
    "ExecutionGuard",
    "ExecutionResult",
    "ExecutionStatus",
    "GlobalSubscriber",
    "IopubBroker",
    "IopubThread",
    "Kernel",
    "KernelHost",
    "KernelMessage",
    "RequestChannels",
    "RequestContext",
    "ShellClient",
    "Wire",
    "execute_code",
    "read_connection_file",
    "send_execute_request",
    "start_iopub_thread",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'himalia.kernels' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
