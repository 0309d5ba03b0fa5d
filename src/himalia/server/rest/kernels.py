"""REST: kernels, in the form of Jupyter Server's API, and running code in them."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from fastapi import APIRouter, Body, Query, Response
from fastapi import Path as PathParameter

from himalia.errors import BadRequest, Forbidden, ShuttingDown
from himalia.protocol import models
from himalia.protocol.models.kernels import KERNEL_ID
from himalia.record import format_ts
from himalia.server.auth import SECURITY, Caller, Context, has_right, require_right
from himalia.server.context import ServerContext
from himalia.server.identity import Principal, Right
from himalia.server.observe.audit import AuditEvent
from himalia.server.rest.schema import JSON, JsonBody, errors, json_response, model_of
from himalia.topics import KERNEL_TOPIC_PREFIX, check_name

if TYPE_CHECKING:
    from himalia.iopub.result import ExecutionResult
    from himalia.kernels.kernel import Kernel
    from himalia.kernels.request import Request

ALL_KERNELS = f"{KERNEL_TOPIC_PREFIX}*"
"""Checked in place of a topic, it needs a right on every kernel's topic: no name of one kernel matches it."""


def _kernel_errors(descriptions: dict[int, str]) -> dict[int | str, dict[str, Any]]:
    return errors(descriptions, models.KernelError)


ERRORS = _kernel_errors(
    {
        401: "No key, or an unknown one",
        403: "The key lacks the right, the origin is foreign, or this server runs no kernels",
        422: "Bad input",
        503: "The log cannot store now, or the server is shutting down; retry",
    }
)
NO_KERNEL = _kernel_errors({404: "No such kernel"})
NO_EXECUTION = _kernel_errors({404: "No such kernel or request, or the log no longer stores it"})
UNAVAILABLE = _kernel_errors({409: "The kernel is dead, or attached and not managed by this server"})
NO_ROOM = _kernel_errors({429: "Too many kernels"})
QUEUE_FULL = _kernel_errors({429: "Too many requests wait for this kernel"})
FAILED = _kernel_errors({502: "The kernel could not be started; the message says why"})
TOO_LARGE = _kernel_errors({413: "The body is too large"})
LOCATION = {"headers": {"Location": {"description": "The kernel", "schema": {"type": "string"}}}}
KERNEL = model_of(models.Kernel)
EXECUTION = model_of(models.Execution)
RESULT: dict[str, Any] = {"model": EXECUTION, "description": "The request and its result so far"}

KernelId = Annotated[str, PathParameter(description="The kernel's id.", json_schema_extra=KERNEL_ID)]
RequestId = Annotated[str, PathParameter(description="The request's id.", max_length=256)]

_CODE_PATH = re.compile(r"/api/kernels/[^/]*/(execute|input)\Z")


def is_of_code(path: str) -> bool:
    """Return whether bodies sent to this path hold code or input, which may be as large as a message."""
    return _CODE_PATH.match(path) is not None


router = APIRouter(prefix="/api", responses=ERRORS, tags=["kernels"], dependencies=SECURITY)


# Kernelspecs


@router.get("/kernelspecs", response_model=model_of(models.KernelSpecs))
async def list_kernelspecs(context: Context, caller: Caller) -> Response:
    """List the kernels that can be started."""
    from himalia.kernels.host import DEFAULT_NAME

    specs = context.kernels.specs
    found = await asyncio.to_thread(specs.get_all_specs)
    kernelspecs = {name: models.KernelSpec(name, entry["spec"]) for name, entry in sorted(found.items())}
    return json_response(models.KernelSpecs(DEFAULT_NAME, kernelspecs))


# Kernels


@router.get("/kernels", response_model=list[KERNEL])  # type: ignore[valid-type]
async def list_kernels(context: Context, caller: Caller) -> Response:
    """List the running kernels whose output you may read."""
    kernels = context.kernels.kernels.values()
    return json_response(
        [_describe(context, one) for one in kernels if caller.may(Right.SUBSCRIBE, one.topic, one.owner)]
    )


@router.post(
    "/kernels",
    status_code=201,
    response_model=KERNEL,
    responses={201: LOCATION, **NO_ROOM, **FAILED, **TOO_LARGE},
)
async def start_kernel(
    context: Context,
    caller: Caller,
    body: Annotated[
        JsonBody[models.StartKernelRequest] | None,
        Body(openapi_examples={"python": {"value": {"name": "python3"}}}),
    ] = None,
) -> Response:
    """Start a kernel, which you then own. Responds when the kernel is ready to run code."""
    _require_start(context, caller, may_be_own=True)
    wanted = body or models.StartKernelRequest()
    _check_start(wanted)
    cwd = await asyncio.to_thread(_find_directory, wanted)
    kernel = await context.kernels.start(
        wanted.name, cwd=cwd, env=wanted.env, owner=caller.name, owner_max=caller.limits.kernels
    )
    return json_response(_describe(context, kernel), 201, {"Location": f"/api/kernels/{kernel.id}"})


@router.post(
    "/kernels/attach",
    status_code=201,
    response_model=KERNEL,
    responses={
        200: {
            "model": model_of(models.Attached),
            "description": "With `all`: the attached kernels, and those skipped with the reason",
        },
        201: LOCATION,
        **UNAVAILABLE,
        **NO_ROOM,
        **FAILED,
        **TOO_LARGE,
    },
)
async def attach_kernel(
    body: Annotated[JsonBody[models.AttachRequest], Body()], context: Context, caller: Caller
) -> Response:
    """Listen to a kernel that another program started, without disturbing it, or to all that can be found."""
    _require_start(context, caller, may_be_own=False)
    if body.all == (body.connection_file is not None):
        raise BadRequest("give either `connection_file`, or `all` as true")
    limit = caller.limits.kernels
    if body.connection_file is not None:
        _refuse_nul("connection_file", [body.connection_file])
        kernel = await context.kernels.attach(body.connection_file, caller.name, owner_max=limit)
        return json_response(_describe(context, kernel), 201, {"Location": f"/api/kernels/{kernel.id}"})
    kernels, skipped = await context.kernels.attach_all(caller.name, owner_max=limit)
    attached = [_describe(context, kernel) for kernel in kernels]
    return json_response(
        models.Attached(attached, [models.Skipped(path, why) for path, why in sorted(skipped.items())])
    )


@router.get("/kernels/{kernel_id}", response_model=KERNEL, responses=NO_KERNEL)
async def get_kernel(context: Context, caller: Caller, kernel_id: KernelId) -> Response:
    """Return one kernel."""
    return json_response(_describe(context, await _get_kernel(context, caller, kernel_id, Right.SUBSCRIBE)))


@router.delete("/kernels/{kernel_id}", status_code=204, responses=NO_KERNEL)
async def stop_kernel(context: Context, caller: Caller, kernel_id: KernelId) -> None:
    """Stop a kernel; detach from one that another program started. The kernel's topic stays."""
    await _get_kernel(context, caller, kernel_id, Right.EXECUTE)
    await context.kernels.stop(kernel_id, caller=caller.name)


@router.post("/kernels/{kernel_id}/interrupt", status_code=204, responses={**NO_KERNEL, **UNAVAILABLE})
async def interrupt_kernel(context: Context, caller: Caller, kernel_id: KernelId) -> None:
    """Interrupt the running code, which ends with the error KeyboardInterrupt."""
    kernel = await _get_kernel(context, caller, kernel_id, Right.EXECUTE)

    async def interrupt() -> None:
        await kernel.interrupt(caller.name)
        context.audit.record(AuditEvent.KERNEL_INTERRUPTED, caller, kernel_id=kernel_id)

    await context.audit.shielded.run(interrupt())


@router.post(
    "/kernels/{kernel_id}/restart",
    response_model=KERNEL,
    responses={**NO_KERNEL, **UNAVAILABLE, **FAILED},
)
async def restart_kernel(context: Context, caller: Caller, kernel_id: KernelId) -> Response:
    """Restart the kernel's process. Running and waiting requests end as `aborted`; id and topic stay."""
    kernel = await _get_kernel(context, caller, kernel_id, Right.EXECUTE)
    await kernel.restart(caller=caller.name)
    return json_response(_describe(context, kernel))


# Running code


@router.post(
    "/kernels/{kernel_id}/execute",
    response_model=EXECUTION,
    responses={
        200: {**RESULT, "description": "With `wait`: the whole result"},
        202: {
            "model": model_of(models.Submitted),
            "description": "The request is queued, and its first record is in the log",
        },
        **NO_KERNEL,
        **UNAVAILABLE,
        **QUEUE_FULL,
        **TOO_LARGE,
    },
)
async def execute(
    body: Annotated[JsonBody[models.ExecuteRequest], Body()],
    context: Context,
    caller: Caller,
    kernel_id: KernelId,
) -> Response:
    """Run code. Responds at once with the request's position, or with `wait` when its result is complete and stored.

    With `wait` the response is 200 whatever the outcome, which `status` names. The code runs on if you disconnect: get
    its result by the request's id. Without the right to read the kernel's topic, code, outputs and error are left out.
    """
    from himalia.kernels.request import Code

    kernel = await _get_kernel(context, caller, kernel_id, Right.EXECUTE)
    _check_running(context)
    options = msgspec.structs.asdict(body)
    del options["wait"]
    code = Code(**options, caller=caller.name)

    async def submit() -> Request:
        request = await kernel.execute(code)
        context.audit.record(AuditEvent.CODE_RUN, caller, kernel_id=kernel_id, request_id=request.id)
        return request

    # Recorded even if the client disconnects while the log commits the request.
    request = await context.audit.shielded.run(submit())
    if body.wait:
        await context.kernels.wait_closed(kernel, request)
        return await _respond_outcome(context, caller, kernel_id, request.id)
    location = {"Location": f"/api/kernels/{kernel_id}/executions/{request.id}"}
    return json_response(models.Submitted(request.id, kernel.topic, request.offset), 202, location)


@router.get(
    "/kernels/{kernel_id}/executions/{request_id}",
    response_model=EXECUTION,
    responses={200: RESULT, **NO_EXECUTION},
)
async def get_execution(
    context: Context,
    caller: Caller,
    kernel_id: KernelId,
    request_id: RequestId,
    late: Annotated[bool, Query(description="Include output that arrived after the request ended.")] = False,
) -> Response:
    """Return the result of a request: while it runs, and as long as the log stores it."""
    host = context.kernels
    await require_right(context.log, caller, Right.SUBSCRIBE, _topic_of(context, kernel_id))
    return await _respond_result(await host.result(kernel_id, request_id, late=late, keeps_json=True))


@router.delete(
    "/kernels/{kernel_id}/executions/{request_id}",
    response_model=EXECUTION,
    responses={200: RESULT, **NO_EXECUTION},
)
async def cancel_execution(
    context: Context, caller: Caller, kernel_id: KernelId, request_id: RequestId
) -> Response:
    """Cancel a request: drop it if it waits, interrupt it if it runs. One that has ended does not change."""
    host = context.kernels
    await require_right(context.log, caller, Right.EXECUTE, _topic_of(context, kernel_id))
    kernel = host.kernels.get(kernel_id)
    if kernel is not None and kernel.scheduler.find(request_id) is not None:
        cancelled = kernel.scheduler.cancel(request_id, caller.name)
        context.audit.record(
            AuditEvent.EXECUTION_CANCELLED, caller, kernel_id=kernel_id, request_id=request_id
        )
        await context.kernels.wait_closed(kernel, cancelled)
    return await _respond_outcome(context, caller, kernel_id, request_id)


@router.post(
    "/kernels/{kernel_id}/input", status_code=204, responses={**NO_KERNEL, **UNAVAILABLE, **TOO_LARGE}
)
async def answer_input(
    body: Annotated[JsonBody[models.InputRequest], Body()],
    context: Context,
    caller: Caller,
    kernel_id: KernelId,
) -> None:
    """Send the input that the running code waits for."""
    (await _get_kernel(context, caller, kernel_id, Right.EXECUTE)).inputs.reply(body.value, caller.name)
    context.audit.record(AuditEvent.INPUT_ANSWERED, caller, kernel_id=kernel_id)


# Shared by the calls


def _topic_of(context: ServerContext, kernel_id: str) -> str:
    if "." in kernel_id:
        raise BadRequest(f"{kernel_id[:80]!r} is not a valid kernel id")
    return check_name(KERNEL_TOPIC_PREFIX + kernel_id, context.settings.topic_length_max)


async def _get_kernel(context: ServerContext, caller: Principal, kernel_id: str, right: Right) -> Kernel:
    host = context.kernels
    await require_right(context.log, caller, right, _topic_of(context, kernel_id))
    return host.get(kernel_id)


def _require_start(context: ServerContext, caller: Principal, *, may_be_own: bool) -> None:
    """Raise ``Forbidden`` unless the caller may start or attach kernels.

    ``may_be_own``: the right to the caller's own kernels is enough.
    """
    _ = context.kernels  # raises if this server runs no kernels
    owns = caller.owns(Right.EXECUTE)
    if not caller.may(Right.EXECUTE, ALL_KERNELS) and not (may_be_own and owns):
        what = "attach kernels, only to start its own" if owns else "start or attach kernels"
        raise Forbidden(
            f"{caller.name!r} has no right to {what}: that takes execute on 'kernels.*'", right=Right.EXECUTE
        )
    _check_running(context)


def _check_running(context: ServerContext) -> None:
    if context.draining:
        raise ShuttingDown("the server is shutting down; retry when it has restarted")


def _check_start(wanted: models.StartKernelRequest) -> None:
    """Refuse text that cannot be passed to a process."""
    for field in ("name", "path", "cwd"):
        _refuse_nul(field, [getattr(wanted, field) or ""])
    env = wanted.env or {}
    _refuse_nul("env", [*env, *env.values()])
    if any(not name or "=" in name for name in env):
        raise BadRequest("the name of a variable in `env` must not be empty or contain '='")


def _refuse_nul(field: str, texts: Iterable[str]) -> None:
    if any("\0" in text for text in texts):
        raise BadRequest(f"`{field}` must not contain a NUL character")


def _find_directory(wanted: models.StartKernelRequest) -> Path | None:
    """Return the kernel's working directory; None for the server's own. Reads the file system."""
    if wanted.cwd is not None:
        if not os.path.isdir(wanted.cwd):
            raise BadRequest(f"the server has no directory {wanted.cwd[:200]!r}", path=wanted.cwd)
        return Path(wanted.cwd).absolute()
    if wanted.path is None:
        return None
    path = Path(wanted.path).absolute()
    return next((folder for folder in (path, *path.parents) if os.path.isdir(folder)), None)


def _describe(context: ServerContext, kernel: Kernel) -> models.Kernel:
    model = kernel.model(connections=context.manager.subscribers_of(kernel.topic))
    return models.Kernel(
        id=model.id,
        name=model.name,
        last_activity=format_ts(model.last_activity_us),
        execution_state=model.execution_state,
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


async def _respond_outcome(
    context: ServerContext, caller: Principal, kernel_id: str, request_id: str
) -> Response:
    """Respond to a caller who may execute; the content only if it may also read the kernel's topic."""
    result = await context.kernels.result(kernel_id, request_id, keeps_json=True)
    may_read = await has_right(context.log, caller, Right.SUBSCRIBE, _topic_of(context, kernel_id))
    return await _respond_result(result if may_read else result.without_content())


async def _respond_result(result: ExecutionResult) -> Response:
    # Outputs can be large, so they are encoded in a thread.
    return Response(await asyncio.to_thread(msgspec.json.encode, result), media_type=JSON)
