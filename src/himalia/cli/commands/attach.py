"""``himalia attach``: store the output of kernels that another program started."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from himalia.cli.options import Json, Token, Url, connect, make_app, run_async
from himalia.cli.terminal.output import print_json, print_warning, write_line
from himalia.protocol.models import Attached, Kernel

app = make_app()


@app.command("attach")
def attach(
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="A connection file, or its name in Jupyter's runtime directory."),
    ] = None,
    attach_all: Annotated[
        bool, typer.Option("--all", help="Every kernel of Jupyter's runtime directory that answers.")
    ] = False,
    url: Url = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Store the output of a kernel that another program started, and print its id.

    From now on all output of the kernel is in its topic, whichever client caused it. Its other clients are not
    affected. The server must be able to read the connection file.

    Examples:

        himalia attach kernel-1234.json

        himalia attach --all
    """
    if attach_all == (file is not None):
        raise typer.BadParameter("give either a connection FILE or --all")
    if file is not None:
        _attach_one(_as_server_sees(file), (url, token), json=json)
    else:
        _attach_all((url, token), json=json)


def _as_server_sees(file: str) -> str:
    """Return the path as the server needs it: absolute, or unchanged for a name in Jupyter's runtime directory."""
    path = Path(file).expanduser()
    return str(path.absolute()) if path.is_file() else file


def _attach_one(file: str, where: tuple[str | None, str | None], *, json: bool) -> None:
    async def call() -> Kernel:
        async with connect(*where) as client:
            return await client.attach_kernel(file)

    attached = run_async(call())
    if json:
        print_json(attached)
    else:
        write_line(attached.id)


def _attach_all(where: tuple[str | None, str | None], *, json: bool) -> None:
    async def call() -> Attached:
        async with connect(*where) as client:
            return await client.attach_all_kernels()

    found = run_async(call())
    if json:
        print_json(found)
        return
    for kernel in found.attached:
        write_line(kernel.id)
    for skipped in found.skipped:
        print_warning(f"{skipped.connection_file} is skipped: {skipped.reason}")
    if not found.attached and not found.skipped:
        print_warning("there are no connection files in Jupyter's runtime directory")
