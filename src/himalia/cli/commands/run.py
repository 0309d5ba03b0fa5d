"""``himalia run``: run code, a file or a notebook, and print its output."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from himalia.cli.notebook.jobs import FAILED, INTERRUPTED, CodeJob, Job, NotebookJob, RunOptions
from himalia.cli.options import Json, Token, Url, make_app, run_async
from himalia.cli.process.signals import run_until_pipe_closes
from himalia.cli.terminal.output import abandon_stdout
from himalia.errors import HimaliaError

app = make_app()


@app.command("run")
def run_code(
    code: Annotated[
        str | None,
        typer.Argument(help="Code, a file with code, or a notebook. '-' reads code from a pipe."),
    ] = None,
    kernel: Annotated[
        str | None,
        typer.Option("--kernel", help="Run on this kernel (an id, or its beginning) and do not stop it."),
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", help="The kind of kernel to start, such as python3.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", help="Seconds that the code, or each cell, may take.", min=0.001),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="Where to write the executed notebook; default NAME.executed.ipynb."),
    ] = None,
    images: Annotated[Path | None, typer.Option("--images", help="Save images in this directory.")] = None,
    allow_errors: Annotated[
        bool, typer.Option("--allow-errors", help="Continue a notebook after a cell that fails.")
    ] = False,
    keep: Annotated[
        bool, typer.Option("--keep", help="Do not stop the kernel at the end; print its id on stderr.")
    ] = False,
    url: Url = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Run code, a file or a notebook on a kernel, and print its output.

    Starts a kernel and stops it at the end, unless --kernel or --keep is given. Ctrl-C interrupts the code; a second
    Ctrl-C leaves. A notebook is written with its new outputs, also if a cell fails. The exit code is 1 if the code
    fails, and 130 after Ctrl-C.

    Examples:

        himalia run 'print(6 * 7)'

        himalia run train.py --timeout 3600

        himalia run report.ipynb --output done.ipynb --images figures
    """
    if kernel is not None and name is not None:
        raise typer.BadParameter("give --kernel or --name, not both")
    options = RunOptions(
        kernel=kernel,
        name=name,
        timeout_s=timeout,
        images=images,
        keep=keep,
        json=json,
        url=url,
        token=token,
        can_prompt=code not in (None, "-") and sys.stdin.isatty() and not json,
    )
    job = _job(code, options, output, allow_errors=allow_errors)
    try:
        status = run_async(run_until_pipe_closes(job.run()))
    except BrokenPipeError:
        abandon_stdout()
        status = FAILED
    except asyncio.CancelledError:
        status = INTERRUPTED
    raise typer.Exit(status)


def _job(code: str | None, options: RunOptions, output: Path | None, *, allow_errors: bool) -> Job:
    if code is not None and code.endswith(".ipynb"):
        path = Path(code).expanduser()
        if not path.is_file():
            raise HimaliaError(f"there is no notebook {code!r}")
        if output is not None and not output.absolute().parent.is_dir():
            raise typer.BadParameter(
                f"--output {str(output)!r}: there is no directory {str(output.parent)!r}"
            )
        return NotebookJob(options, path, output, allow_errors=allow_errors)
    if output is not None or allow_errors:
        raise typer.BadParameter("--output and --allow-errors are for notebooks (.ipynb)")
    return CodeJob(options, _read_code(code))


def _read_code(code: str | None) -> str:
    if code is None and sys.stdin.isatty():
        raise typer.BadParameter("give CODE, a file, or '-' to read code from a pipe")
    try:
        if code is None or code == "-":
            return sys.stdin.buffer.read().decode()
        path = Path(code).expanduser()
        if code.endswith(".py") or _is_file(path):
            return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise HimaliaError(
            f"{'what comes from the pipe' if code in (None, '-') else code} is not UTF-8"
        ) from None
    except OSError as error:
        raise HimaliaError(f"{code} cannot be read: {error.strerror}") from None
    return code


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # code may be longer than any name of a file, or contain anything
        return False
