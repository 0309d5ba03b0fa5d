"""``himalia kernel``: start, list, stop, interrupt, restart."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from himalia.cli.options import Json, KernelId, Token, Url, connect, find_kernel, make_app, run_async
from himalia.cli.terminal.output import print_json, print_table, write_line
from himalia.cli.terminal.units import format_duration
from himalia.client.client import Client
from himalia.protocol.models import Kernel

app = make_app()


@app.callback()
def kernel() -> None:
    """Start, list, stop, interrupt and restart kernels.

    Example:

        himalia kernel list
    """


@app.command("start")
def start_kernel(
    name: Annotated[
        str | None, typer.Argument(help="The kernel spec, such as python3; by default the server's.")
    ] = None,
    cwd: Annotated[
        Path | None, typer.Option("--cwd", help="Its working directory; by default the current one.")
    ] = None,
    url: Url = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Start a kernel and print its id.

    Returns when the kernel answers. The kernel runs until it is stopped, or the server is.

    Examples:

        himalia kernel start

        himalia kernel start python3 --cwd ~/notebooks
    """
    folder = None if cwd is None else cwd.expanduser().absolute()

    async def start() -> Kernel:
        async with connect(url, token) as client:
            # The current directory may not exist on the server's machine; one given with --cwd has to.
            return await client.start_kernel(name, cwd=folder, path=None if folder else Path.cwd())

    started = run_async(start())
    if json:
        print_json(started)
    else:
        write_line(started.id)


@app.command("list")
def list_kernels(url: Url = None, token: Token = None, json: Json = False) -> None:
    """List the running kernels.

    Examples:

        himalia kernel list

        himalia kernel list --json
    """

    async def fetch() -> list[Kernel]:
        async with connect(url, token) as client:
            return await client.kernels()

    found = sorted(run_async(fetch()), key=lambda kernel: kernel.started)
    if json:
        print_json(found)
        return
    columns = ["kernel", "name", "state", "waiting", "viewers", "process", "last active"]
    print_table(
        columns, [_row(kernel) for kernel in found], empty="no kernel runs; see 'himalia kernel start --help'"
    )


def _row(kernel: Kernel) -> list[str]:
    state = kernel.execution_state if kernel.responding else f"{kernel.execution_state}, not responding"
    return [
        kernel.id,
        kernel.name,
        f"{state}, attached" if kernel.foreign else state,
        f"{kernel.queued}",
        f"{kernel.connections}",
        "-" if kernel.pid is None else f"{kernel.pid}",
        _age(kernel.last_activity),
    ]


def _age(ts: str) -> str:
    try:
        then = datetime.fromisoformat(ts)
    except ValueError:
        return ts
    now = datetime.now(UTC) if then.tzinfo else datetime.now()
    return f"{format_duration(max((now - then).total_seconds(), 0))} ago"


@app.command("stop")
def stop_kernel(kernel: KernelId, url: Url = None, token: Token = None, json: Json = False) -> None:
    """Stop a kernel. An attached kernel keeps running; the server only stops listening to it.

    Its output stays in its topic: 'himalia watch' still shows it.

    Example:

        himalia kernel stop 2f1c
    """
    _run_action("stopped", Client.stop_kernel, kernel, (url, token), json=json)


@app.command("interrupt")
def interrupt_kernel(kernel: KernelId, url: Url = None, token: Token = None, json: Json = False) -> None:
    """Interrupt the code that a kernel runs, as Ctrl-C would.

    Example:

        himalia kernel interrupt 2f1c
    """
    _run_action("interrupted", Client.interrupt_kernel, kernel, (url, token), json=json)


@app.command("restart")
def restart_kernel(kernel: KernelId, url: Url = None, token: Token = None, json: Json = False) -> None:
    """Restart a kernel under the same id. Running and queued requests are aborted.

    Example:

        himalia kernel restart 2f1c
    """
    _run_action("restarted", Client.restart_kernel, kernel, (url, token), json=json)


def _run_action(
    status: str,
    act: Callable[[Client, str], Awaitable[Any]],
    text: str,
    where: tuple[str | None, str | None],
    *,
    json: bool,
) -> None:
    async def find_and_act() -> str:
        async with connect(*where) as client:
            kernel_id = await find_kernel(client, text)
            await act(client, kernel_id)
            return kernel_id

    kernel_id = run_async(find_and_act())
    if json:
        print_json({"status": status, "id": kernel_id})
    else:
        write_line(f"{status} {kernel_id}")
