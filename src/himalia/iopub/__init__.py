"""The IOPub broker of a Jupyter front end: routes messages to the requests that caused them.

A library that is usable by itself, without a server or a log. The server uses ``IopubBroker``, ``IopubThread``
and ``ShellClient``; ``RequestChannels``, ``ExecutionCollector``, ``ExecutionGuard`` and ``GlobalSubscriber`` are for
programs that read a kernel's messages directly. Names are imported on first use.
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

_MODULES = {
    "execute_code": "himalia.kernels.execute",  # runs code in a kernel of a host, one layer above
    "BrokerConfig": "himalia.iopub.broker",
    "BrokerStats": "himalia.iopub.broker",
    "Channel": "himalia.jupyter.channels",
    "ConnectionInfo": "himalia.jupyter.connection_file",
    "ExecutionCollector": "himalia.iopub.collector",
    "ExecutionGuard": "himalia.iopub.broker",
    "ExecutionResult": "himalia.iopub.result",
    "ExecutionStatus": "himalia.protocol.models",
    "GlobalSubscriber": "himalia.iopub.channels",
    "IopubBroker": "himalia.iopub.broker",
    "IopubThread": "himalia.iopub.listener",
    "KernelMessage": "himalia.jupyter.wire",
    "RequestChannels": "himalia.iopub.channels",
    "RequestContext": "himalia.iopub.broker",
    "ShellClient": "himalia.iopub.shell",
    "Wire": "himalia.jupyter.wire",
    "read_connection_file": "himalia.jupyter.connection_file",
    "send_execute_request": "himalia.iopub.shell",
    "start_iopub_thread": "himalia.iopub.listener",
}

__all__ = [
    "BrokerConfig",
    "BrokerStats",
    "Channel",
    "ConnectionInfo",
    "ExecutionCollector",
    "ExecutionGuard",
    "ExecutionResult",
    "ExecutionStatus",
    "GlobalSubscriber",
    "IopubBroker",
    "IopubThread",
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
        raise AttributeError(f"module 'himalia.iopub' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
