"""The bodies of the kernels API, as Pydantic models, in the shape of Jupyter Server's where that has one."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StrictBool, StrictStr

from himalia.server.rest.models import ErrorResponse

KERNEL_ID: dict[str, Any] = {"pattern": r"^[A-Za-z0-9_-]+$", "maxLength": 200}
_AN_ID = "3f6c1a52-8d0b-4c7e-9b5a-2f1e6d7c8b90"
_A_REQUEST = "b7a1c5d0-4e2f-4a6b-8c9d-0e1f2a3b4c5d"
PRIORITY_MAX = 1_000_000
TIMEOUT_S_MAX = 1e9


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("a NUL character cannot be passed on")
    return text


Plain = Annotated[StrictStr, AfterValidator(_without_nul)]


def _possible_names(env: dict[str, str]) -> dict[str, str]:
    if any(not name or "=" in name for name in env):
        raise ValueError("a variable's name is not empty and has no '='")
    return env


class KernelError(ErrorResponse):
    """An error under ``/api``: as everywhere, and as Jupyter Server has it."""

    message: str = Field(description="The same sentence.", examples=["there is no kernel 'k1'"])
    reason: None = Field(None, description="Always null; Jupyter's clients look for it.")


class KernelSpecFile(BaseModel):
    """What a kernel.json says."""

    model_config = ConfigDict(extra="allow")

    argv: list[str] = Field(examples=[["python", "-m", "ipykernel_launcher", "-f", "{connection_file}"]])
    display_name: str = Field(examples=["Python 3 (ipykernel)"])
    language: str = Field(examples=["python"])
    env: dict[str, str] = Field({}, description="Variables that the kernel is started with.")
    interrupt_mode: str | None = Field(None, examples=["signal"])
    metadata: dict[str, Any] = {}


class KernelSpecBody(BaseModel):
    name: str = Field(examples=["python3"])
    spec: KernelSpecFile
    resources: dict[str, str] = Field({}, description="Always empty: logos are not served.")


class KernelSpecsResponse(BaseModel):
    default: str = Field(description="What is started if no name is given.", examples=["python3"])
    kernelspecs: dict[str, KernelSpecBody]


class StartKernelRequest(BaseModel):
    """What to start. Fields that Jupyter's clients send beside these are ignored."""

    name: Plain | None = Field(
        None, max_length=200, examples=["python3"], description="A kernelspec; the default one if left out."
    )
    path: Plain | None = Field(
        None,
        max_length=4096,
        examples=["analysis/orders.ipynb"],
        description="As Jupyter has it: a notebook or folder, from the server's working directory; the nearest "
        "folder that exists becomes the kernel's working directory.",
    )
    cwd: Plain | None = Field(
        None, max_length=4096, examples=[None], description="The kernel's working directory; it has to exist."
    )
    env: Annotated[dict[Plain, Plain], AfterValidator(_possible_names)] | None = Field(
        None, examples=[{"OMP_NUM_THREADS": "1"}], description="Variables beside those of the server."
    )


class KernelBody(BaseModel):
    """A kernel. The first five fields are Jupyter Server's."""

    id: str = Field(examples=[_AN_ID])
    name: str = Field(description="Its kernelspec.", examples=["python3"])
    last_activity: str = Field(examples=["2026-11-15T20:17:03.000123Z"])
    execution_state: Literal["starting", "idle", "busy", "restarting", "dead", "unknown"]
    connections: int = Field(description="Subscribers of its topic.", examples=[1])
    topic: str = Field(description="Where everything it says is kept.", examples=[f"kernels.{_AN_ID}"])
    owner: str | None = Field(
        description="The caller who started or attached it; null if that is not known.", examples=["key:ann"]
    )
    foreign: bool = Field(description="Whether something else started it and Himalia only listens.")
    responding: bool = Field(description="Whether its heart beats.")
    queued: int = Field(description="Requests that wait.", examples=[0])
    active_request: str | None = Field(description="The request that runs.", examples=[_A_REQUEST])
    pid: int | None = Field(description="Its process; null for a foreign one.", examples=[4711])
    started: str = Field(examples=["2026-11-15T20:16:59.000001Z"])
    buffered_bytes: int = Field(description="What waits for the log.", examples=[0])


class AttachRequest(BaseModel):
    """Either a connection file, or all of Jupyter's runtime directory."""

    model_config = ConfigDict(extra="forbid")

    connection_file: Plain | None = Field(
        None,
        min_length=1,
        max_length=4096,
        examples=["kernel-123.json"],
        description="A path on the server's machine, or a name or id in Jupyter's runtime directory.",
    )
    all: StrictBool = Field(False, description="Every kernel there that answers.")


class SkippedBody(BaseModel):
    connection_file: str = Field(examples=["/run/user/1000/jupyter/kernel-99.json"])
    reason: str = Field(examples=["nobody listens there; the kernel has ended"])


class AttachedResponse(BaseModel):
    """What became of ``all``."""

    attached: list[KernelBody]
    skipped: list[SkippedBody]


class ExecuteRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    code: StrictStr = Field(examples=["print(6 * 7)"])
    priority: int = Field(
        0,
        ge=-PRIORITY_MAX,
        le=PRIORITY_MAX,
        description="Of the requests that wait, those with a higher one are sent first.",
    )
    timeout_s: float | None = Field(
        None,
        gt=0,
        le=TIMEOUT_S_MAX,
        examples=[60],
        description="How long it may run before the kernel is interrupted; waiting does not count.",
    )
    wait: StrictBool = Field(False, description="Answer with the whole result, when it has ended.")
    silent: StrictBool = Field(
        False, description="As in the Jupyter protocol: publish as little as possible."
    )
    store_history: StrictBool = Field(True, description="Count it, and keep it in the kernel's history.")
    allow_stdin: StrictBool = Field(
        False, description="Whether it may ask for input; answer with `POST .../input`."
    )
    stop_on_error: StrictBool = Field(True, description="As in the Jupyter protocol.")


class ExecuteResponse(BaseModel):
    """Where to find what comes of it."""

    request_id: str = Field(description="Its Jupyter `msg_id`.", examples=[_A_REQUEST])
    topic: str = Field(examples=[f"kernels.{_AN_ID}"])
    offset: int = Field(description="Where it begins in the topic: subscribe from here.", examples=[17])


class InputRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")

    value: StrictStr = Field(examples=["yes"], description="What was typed, without a line break.")


class ExecutionErrorBody(BaseModel):
    ename: str = Field(examples=["ZeroDivisionError"])
    evalue: str = Field(examples=["division by zero"])
    traceback: list[str]


class ExecutionBody(BaseModel):
    """A request and all that came of it so far. Times are microseconds since 1970, null if it has not happened."""

    request_id: str = Field(examples=[_A_REQUEST])
    kernel_id: str = Field(examples=[_AN_ID])
    topic: str = Field(examples=[f"kernels.{_AN_ID}"])
    status: Literal["ok", "error", "aborted", "died", "timeout", "cancelled", "running", "stale"]
    reason: str = Field(description="Why, where there is more to say.", examples=[""])
    execution_count: int | None = Field(examples=[1])
    code: str = Field(examples=["print(6 * 7)"])
    caller: str = Field(
        description="Who asked; empty if it did not come by way of this server.", examples=["key:ann"]
    )
    outputs: list[dict[str, Any]] = Field(
        description="In the form of nbformat 4.",
        examples=[[{"output_type": "stream", "name": "stdout", "text": "42\n"}]],
    )
    error: ExecutionErrorBody | None = Field(description="What the code raised.")
    queued_us: int | None
    sent_us: int | None
    started_us: int | None
    finished_us: int | None
    run_us: int | None = Field(
        description="How long it ran, in microseconds, by the kernel's own clock where that can be trusted.",
        examples=[22_410],
    )
    counts: dict[str, int] = Field(description="Messages by channel.", examples=[{"status": 2, "stream": 1}])
    offset: int | None = Field(description="Where it begins in the topic.", examples=[17])
    end: int = Field(description="One past its last record that was read.", examples=[25])
    truncated: bool = Field(description="The outputs are not whole: cut at a limit, or no longer kept.")
    dropped: int = Field(description="Messages known to be lost on their way to the log.", examples=[0])
    malformed: int = Field(description="Messages that are not what their type says.", examples=[0])
    withheld: bool = Field(description="Code, outputs and error are left out: you may run code, not read.")
