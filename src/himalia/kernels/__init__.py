"""Kernels: their messages, correlated with the requests that caused them, and kept.

Names are imported when asked for, so that the keeper, a process of its own for each kernel, stays small.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from himalia.iopub.broker import (
        BrokerConfig,
        BrokerStats,
        ExecutionGuard,
        IopubBroker,
        RequestContext,
    )
    from himalia.iopub.channels import Channel, GlobalSubscriber, RequestChannels
    from himalia.iopub.collector import ExecutionCollector
    from himalia.iopub.listener import IopubThread, start_iopub_thread
    from himalia.iopub.shell import ShellClient, send_execute_request
    from himalia.jupyter.connection_file import ConnectionInfo, read_connection_file
    from himalia.jupyter.result import ExecutionResult, ExecutionStatus
    from himalia.jupyter.wire import KernelMessage, Wire
    from himalia.kernels.execute import execute_code
    from himalia.kernels.host import KernelHost
    from himalia.kernels.kernel import Kernel
    from himalia.kernels.request import Code

_HOMES = {
    "BrokerConfig": "broker",
    "BrokerStats": "broker",
    "Channel": "channels",
    "Code": "request",
    "ConnectionInfo": "connection_file",
    "ExecutionCollector": "collector",
    "ExecutionGuard": "guard",
    "ExecutionResult": "result",
    "ExecutionStatus": "result",
    "GlobalSubscriber": "global_subscriber",
    "IopubBroker": "broker",
    "IopubThread": "iopub",
    "Kernel": "kernel",
    "KernelHost": "host",
    "KernelMessage": "wire",
    "RequestChannels": "channels",
    "RequestContext": "broker",
    "ShellClient": "shell",
    "Wire": "wire",
    "execute_code": "execute",
    "read_connection_file": "connection_file",
    "send_execute_request": "shell",
    "start_iopub_thread": "iopub",
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
    if name not in _HOMES:
        raise AttributeError(f"module 'himalia.kernels' has no attribute {name!r}")
    return getattr(import_module(f"himalia.kernels.{_HOMES[name]}"), name)
