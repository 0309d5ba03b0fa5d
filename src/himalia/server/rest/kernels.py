"""REST: kernels, in the shape of Jupyter Server's API, and running code in them."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from uuid import uuid4

import msgspec
from fastapi import APIRouter, Body, Query, Response
from fastapi import Path as PathParameter

from himalia.errors import BadRequest, Forbidden, ShuttingDown
from himalia.record import format_ts
from himalia.server.auth import SECURITY, Caller, TheBroker, has_right, require_right
from himalia.server.context import Broker
from himalia.server.identity import Principal, Right
from himalia.server.observe.audit import AuditEvent
from himalia.server.rest.kernel_models import (
    KERNEL_ID,
    AttachedResponse,
    AttachRequest,
    ExecuteRequest,
    ExecuteResponse,
    ExecutionBody,
    InputRequest,
    KernelBody,
    KernelError,
    KernelSpecBody,
    KernelSpecFile,
    KernelSpecsResponse,
    SkippedBody,
    StartKernelRequest,
)
from himalia.topics import KERNEL_TOPIC_PREFIX, check_name

if TYPE_CHECKING:
    from himalia.iopub.result import ExecutionResult
    from himalia.kernels.kernel import Kernel

JSON = "application/json"
_ANY_TOPIC = f"{KERNEL_TOPIC_PREFIX}{uuid4()}"
"""The topic of a kernel that is yet to be: only a pattern can give a right on it."""


def _errors(**descriptions: str) -> dict[int | str, dict[str, Any]]:
    return {
        int(status.removeprefix("on_")): {"model": KernelError, "description": description}
        for status, description in descriptions.items()
    }


ERRORS = _errors(
    on_401="No key, or an unknown one",
    on_403="The key lacks the right, the origin is foreign, or this server runs no kernels",
    on_422="Bad input",
    on_503="The log cannot store now, or the server is shutting down; retry",
)
NO_KERNEL = _errors(on_404="No such kernel")
NO_EXECUTION = _errors(on_404="No such kernel or request, or the log no longer keeps it")
UNAVAILABLE = _errors(on_409="The kernel is dead, or not ours to do that with")
NO_ROOM = _errors(on_429="Too many kernels")
FAILED = _errors(on_502="The kernel could not be started; the message says why")
TOO_LARGE = _errors(on_413="The body is too large")
RESULT: dict[str, Any] = {"model": ExecutionBody, "description": "The request and all that came of it"}

KernelId = Annotated[str, PathParameter(description="The kernel's id.", json_schema_extra=KERNEL_ID)]
RequestId = Annotated[str, PathParameter(description="The request's id.", max_length=256)]

_CODE_PATH = re.compile(r"/api/kernels/[^/]*/(execute|input)\Z")


def is_of_code(path: str) -> bool:
    """Whether a body sent there holds code, or what code asked for: as much as a message."""
    return _CODE_PATH.match(path) is not None


router = APIRouter(prefix="/api", responses=ERRORS, tags=["kernels"], dependencies=SECURITY)


# Kernelspecs


@router.get("/kernelspecs")
async def list_kernelspecs(broker: TheBroker, caller: Caller) -> KernelSpecsResponse:
    """The kernels that can be started here."""
    from himalia.kernels.host import DEFAULT_NAME

    specs = broker.kernels.host.specs
    found = await asyncio.to_thread(specs.get_all_specs)
    return KernelSpecsResponse(
        default=DEFAULT_NAME,
        kernelspecs={
            name: KernelSpecBody(name=name, spec=KernelSpecFile(**entry["spec"]))
            for name, entry in sorted(found.items())
        },
    )


# Kernels


@router.get("/kernels")
async def list_kernels(broker: TheBroker, caller: Caller) -> list[KernelBody]:
    """The kernels that run and that you may watch."""
    kernels = broker.kernels.host.kernels.values()
    return [
        _body(broker, kernel) for kernel in kernels if caller.may(Right.SUBSCRIBE, kernel.topic, kernel.owner)
    ]


@router.post(
    "/kernels",
    status_code=201,
    responses={
        201: {"headers": {"Location": {"description": "The kernel", "schema": {"type": "string"}}}},
        **NO_ROOM,
        **FAILED,
        **TOO_LARGE,
    },
)
async def start_kernel(
    broker: TheBroker,
    caller: Caller,
    response: Response,
    body: Annotated[
        StartKernelRequest | None, Body(openapi_examples={"python": {"value": {"name": "python3"}}})
    ] = None,
) -> KernelBody:
    """Start a kernel, which is then yours. The answer comes when it is ready to run code."""
    _require_new(broker, caller, may_be_own=True)
    wanted = body or StartKernelRequest()
    cwd = await asyncio.to_thread(_directory, wanted)
    kernel = await broker.kernels.start(wanted.name, cwd, wanted.env, caller)
    response.headers["Location"] = f"/api/kernels/{kernel.id}"
    return _body(broker, kernel)


@router.post(
    "/kernels/attach",
    status_code=201,
    response_model=KernelBody,
    responses={
        200: {"model": AttachedResponse, "description": "With `all`: which were attached, which not and why"},
        201: {"headers": {"Location": {"description": "The kernel", "schema": {"type": "string"}}}},
        **UNAVAILABLE,
        **NO_ROOM,
        **FAILED,
        **TOO_LARGE,
    },
)
async def attach_kernel(body: AttachRequest, broker: TheBroker, caller: Caller) -> Response:
    """Listen to a kernel that something else started, without disturbing it, or to all that can be found."""
    _require_new(broker, caller, may_be_own=False)
    if body.all == (body.connection_file is not None):
        raise BadRequest("give connection_file, or all as true; not both")
    if body.connection_file is not None:
        kernel = await broker.kernels.attach(body.connection_file, caller)
        content = _body(broker, kernel).model_dump_json()
        return Response(content, 201, {"Location": f"/api/kernels/{kernel.id}"}, JSON)
    kernels, skipped = await broker.kernels.attach_all(caller)
    answer = AttachedResponse(
        attached=[_body(broker, kernel) for kernel in kernels],
        skipped=[SkippedBody(connection_file=path, reason=why) for path, why in sorted(skipped.items())],
    )
    return Response(answer.model_dump_json(), media_type=JSON)


@router.get("/kernels/{kernel_id}", responses=NO_KERNEL)
async def get_kernel(broker: TheBroker, caller: Caller, kernel_id: KernelId) -> KernelBody:
    """One kernel."""
    return _body(broker, await _kernel(broker, caller, kernel_id, Right.SUBSCRIBE))


@router.delete("/kernels/{kernel_id}", status_code=204, responses=NO_KERNEL)
async def stop_kernel(broker: TheBroker, caller: Caller, kernel_id: KernelId) -> None:
    """End a kernel; one that something else started is only let go. Its topic stays."""
    await _kernel(broker, caller, kernel_id, Right.EXECUTE)
    await broker.kernels.host.stop(kernel_id, caller=caller.name)


@router.post("/kernels/{kernel_id}/interrupt", status_code=204, responses={**NO_KERNEL, **UNAVAILABLE})
async def interrupt_kernel(broker: TheBroker, caller: Caller, kernel_id: KernelId) -> None:
    """Interrupt what the kernel runs; that ends with the error KeyboardInterrupt."""
    kernel = await _kernel(broker, caller, kernel_id, Right.EXECUTE)

    async def interrupt() -> None:
        await kernel.interrupt(caller.name)
        broker.audit.record(AuditEvent.KERNEL_INTERRUPTED, caller, kernel_id=kernel_id)

    await broker.audit.undivided.run(interrupt())


@router.post("/kernels/{kernel_id}/restart", responses={**NO_KERNEL, **UNAVAILABLE, **FAILED})
async def restart_kernel(broker: TheBroker, caller: Caller, kernel_id: KernelId) -> KernelBody:
    """Start the kernel's process anew. What runs or waits ends as `aborted`; id and topic stay."""
    kernel = await _kernel(broker, caller, kernel_id, Right.EXECUTE)
    await kernel.restart(caller=caller.name)
    return _body(broker, kernel)


# Running code


@router.post(
    "/kernels/{kernel_id}/execute",
    response_model=ExecutionBody,
    responses={
        200: {**RESULT, "description": "With `wait`: the whole result"},
        202: {"model": ExecuteResponse, "description": "It is in line, and can be found in the log"},
        **NO_KERNEL,
        **UNAVAILABLE,
        **_errors(on_429="Too many requests wait for this kernel"),
        **TOO_LARGE,
    },
)
async def execute(body: ExecuteRequest, broker: TheBroker, caller: Caller, kernel_id: KernelId) -> Response:
    """Run code. Answers at once with where to look, or with `wait` when it has ended and all of it is stored.

    With `wait` every end is 200, and `status` tells which. It goes on if you go away; ask for it again by its id.
    Without the right to read the kernel's topic, the answer does not have what the code printed.
    """
    from himalia.kernels.request import Code

    kernel = await _kernel(broker, caller, kernel_id, Right.EXECUTE)
    _check_running(broker)
    code = Code(**body.model_dump(exclude={"wait"}), caller=caller.name)
    request = await broker.kernels.execute(kernel, code, caller)
    if body.wait:
        await broker.kernels.until_closed(kernel, request)
        return await _outcome(broker, caller, kernel_id, request.id)
    answer = ExecuteResponse(request_id=request.id, topic=kernel.topic, offset=request.offset)
    location = {"Location": f"/api/kernels/{kernel_id}/executions/{request.id}"}
    return Response(answer.model_dump_json(), 202, location, JSON)


@router.get(
    "/kernels/{kernel_id}/executions/{request_id}",
    response_model=ExecutionBody,
    responses={200: RESULT, **NO_EXECUTION},
)
async def get_execution(
    broker: TheBroker,
    caller: Caller,
    kernel_id: KernelId,
    request_id: RequestId,
    late: Annotated[bool, Query(description="Also what came after its end.")] = False,
) -> Response:
    """What became of a request, any number of times: while it runs, and as long as the log keeps it."""
    host = broker.kernels.host
    await require_right(broker.log, caller, Right.SUBSCRIBE, _topic(broker, kernel_id))
    return await _answer(await host.result(kernel_id, request_id, late=late, keeps_json=True))


@router.delete(
    "/kernels/{kernel_id}/executions/{request_id}",
    response_model=ExecutionBody,
    responses={200: RESULT, **NO_EXECUTION},
)
async def cancel_execution(
    broker: TheBroker, caller: Caller, kernel_id: KernelId, request_id: RequestId
) -> Response:
    """End a request: one that waits never runs, one that runs is interrupted. One that has ended stays as it is."""
    host = broker.kernels.host
    await require_right(broker.log, caller, Right.EXECUTE, _topic(broker, kernel_id))
    kernel = host.kernels.get(kernel_id)
    if kernel is not None and kernel.scheduler.find(request_id) is not None:
        cancelled = kernel.scheduler.cancel(request_id, caller.name)
        broker.audit.record(
            AuditEvent.EXECUTION_CANCELLED, caller, kernel_id=kernel_id, request_id=request_id
        )
        await broker.kernels.until_closed(kernel, cancelled)
    return await _outcome(broker, caller, kernel_id, request_id)


@router.post(
    "/kernels/{kernel_id}/input", status_code=204, responses={**NO_KERNEL, **UNAVAILABLE, **TOO_LARGE}
)
async def answer_input(body: InputRequest, broker: TheBroker, caller: Caller, kernel_id: KernelId) -> None:
    """Give what the running code asks for on stdin."""
    (await _kernel(broker, caller, kernel_id, Right.EXECUTE)).answer(body.value, caller.name)
    broker.audit.record(AuditEvent.INPUT_ANSWERED, caller, kernel_id=kernel_id)


# What the calls share


def _topic(broker: Broker, kernel_id: str) -> str:
    if "." in kernel_id:
        raise BadRequest(f"{kernel_id[:80]!r} is not a kernel's id")
    return check_name(KERNEL_TOPIC_PREFIX + kernel_id, broker.settings.topic_length_max)


async def _kernel(broker: Broker, caller: Principal, kernel_id: str, right: Right) -> Kernel:
    host = broker.kernels.host
    await require_right(broker.log, caller, right, _topic(broker, kernel_id))
    return host.get(kernel_id)


def _require_new(broker: Broker, caller: Principal, *, may_be_own: bool) -> None:
    """``Forbidden`` unless the caller may have a new kernel; ``may_be_own`` if the right to its own is enough."""
    _ = broker.kernels.host
    owns = caller.owns(Right.EXECUTE)
    if not caller.may(Right.EXECUTE, _ANY_TOPIC) and not (may_be_own and owns):
        what = "attach kernels, only to start its own" if owns else "start or attach kernels"
        raise Forbidden(
            f"{caller.name!r} has no right to {what}: that is execute on 'kernels.*'", right=Right.EXECUTE
        )
    _check_running(broker)


def _check_running(broker: Broker) -> None:
    if broker.draining:
        raise ShuttingDown("the server is shutting down; try again in a moment")


def _directory(wanted: StartKernelRequest) -> Path | None:
    """Where the kernel is to work; None for the server's own directory."""
    if wanted.cwd is not None:
        if not os.path.isdir(wanted.cwd):
            raise BadRequest(f"there is no directory {wanted.cwd[:200]!r} on the server", path=wanted.cwd)
        return Path(wanted.cwd).absolute()
    if wanted.path is None:
        return None
    path = Path(wanted.path).absolute()
    return next((folder for folder in (path, *path.parents) if os.path.isdir(folder)), None)


def _body(broker: Broker, kernel: Kernel) -> KernelBody:
    model = kernel.model(connections=broker.manager.subscribers_of(kernel.topic))
    return KernelBody(
        id=model.id,
        name=model.name,
        last_activity=format_ts(model.last_activity_us),
        execution_state=model.execution_state.value,
        connections=model.connections,
        topic=model.topic,
        owner=model.owner,
        foreign=model.is_foreign,
        responding=model.responding,
        queued=model.queued,
        active_request=model.active_request,
        pid=model.pid,
        started=format_ts(model.started_us),
        buffered_bytes=model.buffered_bytes,
    )


async def _outcome(broker: Broker, caller: Principal, kernel_id: str, request_id: str) -> Response:
    """A request for one who may execute: what it printed is only for those who may read the kernel's topic."""
    result = await broker.kernels.host.result(kernel_id, request_id, keeps_json=True)
    may_read = await has_right(broker.log, caller, Right.SUBSCRIBE, _topic(broker, kernel_id))
    return await _answer(result if may_read else result.without_content())


async def _answer(result: ExecutionResult) -> Response:
    # Outputs can be large: they are encoded once, in a thread, and not checked again.
    return Response(await asyncio.to_thread(msgspec.json.encode, result), media_type=JSON)
