"""Kernels and the code they run, in the form of Jupyter Server's API where that has one."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from himalia.protocol.models.server import ErrorResponse
from himalia.topics import KERNEL_TOPIC_PREFIX

KERNEL_ID: dict[str, Any] = {"pattern": r"^[A-Za-z0-9_-]+$", "maxLength": 200}
PRIORITY_MAX = 1_000_000
TIMEOUT_S_MAX = 1e9
_ID = "3f6c1a52-8d0b-4c7e-9b5a-2f1e6d7c8b90"
_TOPIC = KERNEL_TOPIC_PREFIX + _ID
_REQUEST_ID = "b7a1c5d0-4e2f-4a6b-8c9d-0e1f2a3b4c5d"

Name = Annotated[str, Meta(max_length=200)]
Path = Annotated[str, Meta(max_length=4096)]


class KernelState(StrEnum):
    """The states of Jupyter Server."""

    STARTING = "starting"
    IDLE = "idle"
    BUSY = "busy"
    RESTARTING = "restarting"
    DEAD = "dead"
    UNKNOWN = "unknown"


class ExecutionStatus(StrEnum):
    """The outcome of a request."""

    OK = "ok"
    ERROR = "error"
    """The code raised; an interrupt is such an error too (KeyboardInterrupt)."""
    ABORTED = "aborted"
    """It never ran: an earlier request failed, or the server stopped before it was sent."""
    DIED = "died"
    """The kernel died or was restarted while it ran."""
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    RUNNING = "running"
    """Not closed yet: it waits, runs, or has just ended."""
    STALE = "stale"
    """The server stopped waiting: neither the request nor the kernel's heartbeat showed activity."""

    @property
    def is_final(self) -> bool:
        return self is not ExecutionStatus.RUNNING


class KernelError(ErrorResponse, frozen=True):
    """An error under ``/api``: the usual form, with the fields of Jupyter Server added."""

    message: Annotated[str, Meta(description="The same sentence.", examples=["there is no kernel 'k1'"])]
    reason: Annotated[None, Meta(description="Always null; Jupyter's clients expect the field.")] = None


class KernelSpecFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The contents of a kernel.json."""

    argv: Annotated[
        list[str], Meta(examples=[["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"]])
    ]
    display_name: Annotated[str, Meta(examples=["Python 3 (ipykernel)"])]
    language: Annotated[str, Meta(examples=["python"])]
    env: Annotated[
        dict[str, str], Meta(description="Environment variables that the kernel starts with.")
    ] = {}
    interrupt_mode: Annotated[str | None, Meta(examples=["signal"])] = None
    metadata: dict[str, Any] = {}


class KernelSpec(msgspec.Struct, frozen=True):
    """A kind of kernel that the server can start."""

    name: Annotated[str, Meta(examples=["python3"])]
    # A dictionary, because a kernel.json may have more fields than KernelSpecFile documents.
    spec: Annotated[dict[str, Any], Meta(extra={"shape": KernelSpecFile})]
    resources: Annotated[dict[str, str], Meta(description="Always empty: logos are not served.")] = {}

    @property
    def display_name(self) -> str:
        return str(self.spec.get("display_name") or self.name)

    @property
    def language(self) -> str:
        return str(self.spec.get("language") or "")


class KernelSpecs(msgspec.Struct, frozen=True):
    default: Annotated[
        str, Meta(description="The kernelspec that is started if no name is given.", examples=["python3"])
    ]
    kernelspecs: dict[str, KernelSpec]


class StartKernelRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What to start. Other fields, which Jupyter's clients send, are ignored."""

    name: Annotated[
        Name | None, Meta(description="A kernelspec; the default one if left out.", examples=["python3"])
    ] = None
    path: Annotated[
        Path | None,
        Meta(
            description="As in Jupyter: a notebook or folder, relative to the server's working directory; the "
            "nearest existing folder becomes the kernel's working directory.",
            examples=["analysis/orders.ipynb"],
        ),
    ] = None
    cwd: Annotated[
        Path | None, Meta(description="The kernel's working directory; it must exist.", examples=[None])
    ] = None
    env: Annotated[
        dict[str, str] | None,
        Meta(
            description="Environment variables in addition to the server's.",
            examples=[{"OMP_NUM_THREADS": "1"}],
        ),
    ] = None


class Kernel(msgspec.Struct, frozen=True, kw_only=True):
    """A kernel. The first five fields are Jupyter Server's. Times are ISO 8601."""

    id: Annotated[str, Meta(examples=[_ID])]
    name: Annotated[str, Meta(description="Its kernelspec.", examples=["python3"])]
    last_activity: Annotated[str, Meta(examples=["2026-11-15T20:17:03.000123Z"])]
    execution_state: Annotated[str, Meta(extra_json_schema={"enum": list(KernelState)})]
    connections: Annotated[int, Meta(description="Subscribers of its topic.", examples=[1])]
    topic: Annotated[
        str, Meta(description="The topic that stores its messages and events.", examples=[_TOPIC])
    ]
    owner: Annotated[
        str | None,
        Meta(description="The caller who started or attached it; null if unknown.", examples=["key:ann"]),
    ] = None
    foreign: Annotated[
        bool, Meta(description="Whether another program started it and Himalia only listens.")
    ] = False
    responding: Annotated[bool, Meta(description="Whether its heartbeat answers.")] = True
    queued: Annotated[int, Meta(description="Requests that wait.", examples=[0])] = 0
    active_request: Annotated[
        str | None, Meta(description="The request that runs.", examples=[_REQUEST_ID])
    ] = None
    pid: Annotated[
        int | None, Meta(description="Its process id; null for a foreign kernel.", examples=[4711])
    ] = None
    started: Annotated[str, Meta(examples=["2026-11-15T20:16:59.000001Z"])] = ""
    buffered_bytes: Annotated[
        int, Meta(description="Bytes that wait to be appended to the log.", examples=[0])
    ] = 0


class AttachRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """Either one connection file, or all of Jupyter's runtime directory."""

    connection_file: Annotated[
        Annotated[str, Meta(min_length=1, max_length=4096)] | None,
        Meta(
            description="A path on the server's machine, or a name or id in Jupyter's runtime directory.",
            examples=["kernel-123.json"],
        ),
    ] = None
    all: Annotated[bool, Meta(description="Attach to every kernel there that answers.")] = False


class Skipped(msgspec.Struct, frozen=True):
    """A connection file in Jupyter's runtime directory that the server did not attach to, and why."""

    connection_file: Annotated[str, Meta(examples=["/run/user/1000/jupyter/kernel-99.json"])]
    reason: Annotated[str, Meta(examples=["nothing listens there; the kernel has ended"])]


class Attached(msgspec.Struct, frozen=True):
    """The result of attaching to all kernels."""

    attached: list[Kernel]
    skipped: list[Skipped] = []


class ExecuteRequest(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    code: Annotated[str, Meta(examples=["print(6 * 7)"])]
    priority: Annotated[
        int,
        Meta(
            ge=-PRIORITY_MAX,
            le=PRIORITY_MAX,
            description="Of the waiting requests, the one with the highest priority is sent first.",
        ),
    ] = 0
    timeout_s: Annotated[
        Annotated[float, Meta(gt=0, le=TIMEOUT_S_MAX)] | None,
        Meta(
            description="Interrupt the kernel if the code runs longer than this; time in the queue does not count.",
            examples=[60],
        ),
    ] = None
    wait: Annotated[bool, Meta(description="Respond with the whole result when the code has ended.")] = False
    silent: Annotated[
        bool, Meta(description="As in the Jupyter protocol: publish as little as possible.")
    ] = False
    store_history: Annotated[
        bool, Meta(description="Count the execution and keep it in the kernel's history.")
    ] = True
    allow_stdin: Annotated[
        bool, Meta(description="Whether the code may ask for input; reply with `POST .../input`.")
    ] = False
    stop_on_error: Annotated[bool, Meta(description="As in the Jupyter protocol.")] = True


class Submitted(msgspec.Struct, frozen=True):
    """A queued request, and where its records begin."""

    request_id: Annotated[str, Meta(description="Its Jupyter `msg_id`.", examples=[_REQUEST_ID])]
    topic: Annotated[str, Meta(examples=[_TOPIC])]
    offset: Annotated[int, Meta(description="Subscribe to the topic from this offset.", examples=[17])]


class InputRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    value: Annotated[
        str, Meta(description="The line that was typed, without a line break.", examples=["yes"])
    ]


class ExecutionError(msgspec.Struct, frozen=True):
    """The exception that the code raised. Lines of the traceback may contain ANSI colours."""

    ename: Annotated[str, Meta(examples=["ZeroDivisionError"])]
    evalue: Annotated[str, Meta(examples=["division by zero"])]
    traceback: list[str]


class Execution(msgspec.Struct, frozen=True, kw_only=True):
    """A request and its result so far. Times are microseconds since 1970, null if the step has not happened."""

    request_id: Annotated[str, Meta(examples=[_REQUEST_ID])]
    kernel_id: Annotated[str, Meta(examples=[_ID])]
    topic: Annotated[str, Meta(examples=[_TOPIC])]
    status: Annotated[str, Meta(extra_json_schema={"enum": list(ExecutionStatus)})]
    reason: Annotated[str, Meta(description="Details of the status, or empty.", examples=[""])] = ""
    execution_count: Annotated[int | None, Meta(examples=[1])] = None
    code: Annotated[str, Meta(examples=["print(6 * 7)"])] = ""
    caller: Annotated[
        str,
        Meta(
            description="The caller who sent the request; empty if it did not pass through this server.",
            examples=["key:ann"],
        ),
    ] = ""
    outputs: Annotated[
        list[dict[str, Any]],
        Meta(
            description="In the form of nbformat 4.",
            examples=[[{"output_type": "stream", "name": "stdout", "text": "42\n"}]],
        ),
    ] = []
    error: Annotated[ExecutionError | None, Meta(description="The exception that the code raised.")] = None
    queued_us: int | None = None
    sent_us: int | None = None
    started_us: int | None = None
    finished_us: int | None = None
    run_us: Annotated[
        int | None,
        Meta(
            description="How long the code ran, in microseconds, by the kernel's own clock where it can be trusted.",
            examples=[22_410],
        ),
    ] = None
    counts: Annotated[
        dict[str, int], Meta(description="Messages by channel.", examples=[{"status": 2, "stream": 1}])
    ] = {}
    offset: Annotated[
        int | None,
        Meta(
            description="Offset of its first record; null if that was not among the records read.",
            examples=[17],
        ),
    ] = None
    end: Annotated[int, Meta(description="One past its last record that was read.", examples=[25])] = 0
    truncated: Annotated[
        bool, Meta(description="The outputs are incomplete: cut at a limit, or no longer stored.")
    ] = False
    dropped: Annotated[
        int, Meta(description="Messages known to be lost before they reached the log.", examples=[0])
    ] = 0
    malformed: Annotated[
        int, Meta(description="Stored messages whose content does not match their type.", examples=[0])
    ] = 0
    withheld: Annotated[
        bool,
        Meta(description="Code, outputs and error are left out: the caller may run code but not read it."),
    ] = False
