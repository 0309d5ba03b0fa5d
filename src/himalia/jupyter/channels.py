"""The channels of a request: which message type goes to which.

Every type of protocol 5.4 has its channel, and so has every other type:

=========== ==========================================================================================
channel     message types
=========== ==========================================================================================
status      status
execution   execute_input, execute_result, error; debug_event, iopub_welcome, shutdown_reply;
            input_request (stdin); every other request and reply of the shell, control and stdin
            sockets, should one be routed; **every type that is not in this table**
stream      stream
display     display_data, update_display_data, clear_output
comm        comm_open, comm_msg, comm_close
=========== ==========================================================================================
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from himalia.jupyter.wire import KernelMessage


class Channel(StrEnum):
    STATUS = "status"
    EXECUTION = "execution"
    STREAM = "stream"
    DISPLAY = "display"
    COMM = "comm"


CHANNELS: dict[str, Channel] = {
    "status": Channel.STATUS,
    "execute_input": Channel.EXECUTION,
    "execute_result": Channel.EXECUTION,
    "error": Channel.EXECUTION,
    "debug_event": Channel.EXECUTION,
    "iopub_welcome": Channel.EXECUTION,
    "shutdown_reply": Channel.EXECUTION,
    "input_request": Channel.EXECUTION,
    "stream": Channel.STREAM,
    "display_data": Channel.DISPLAY,
    "update_display_data": Channel.DISPLAY,
    "clear_output": Channel.DISPLAY,
    "comm_open": Channel.COMM,
    "comm_msg": Channel.COMM,
    "comm_close": Channel.COMM,
}
"""Channels by type. Other types go to the execution channel."""


def channel_of(msg_type: str) -> Channel:
    return CHANNELS.get(msg_type, Channel.EXECUTION)


class _Status(msgspec.Struct, gc=False):
    execution_state: str = ""


_decode_status = msgspec.json.Decoder(_Status).decode


def is_idle(message: KernelMessage) -> bool:
    """Return whether this is the kernel's ``idle``: it is done with the parent request."""
    if message.msg_type != "status":
        return False
    try:
        return _decode_status(message.content).execution_state == "idle"
    except msgspec.DecodeError:
        return False
