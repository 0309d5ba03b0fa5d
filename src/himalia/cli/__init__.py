"""The command ``himalia``. Each command is a module of its own, imported only when it is used."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer
from typer.exceptions import TyperException

from himalia import __version__
from himalia.cli.lazy import LazyGroup
from himalia.errors import HimaliaError

__all__ = ["app", "main"]

app = typer.Typer(
    name="himalia", cls=LazyGroup, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"himalia {__version__}")
        raise typer.Exit()


@app.callback()
def _himalia(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """A message broker on one durable log: many cursors, nothing lost.

    Example, in two terminals:

        himalia up

        himalia tail orders --last 10
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit: 0, 1 after an error, 2 after wrong usage, 130 after Ctrl-C.

    An error is one sentence on stderr. A traceback means a bug in Himalia.
    """
    try:
        code = app(arguments, prog_name="himalia", standalone_mode=False)
    except HimaliaError as error:
        code = _fail(error.message, 1)
    except TyperException as error:
        code = _fail_usage(error)
    except typer.Abort:
        code = _fail("aborted; nothing was changed", 1)
    except KeyboardInterrupt:
        code = 130
    sys.exit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> int:
    from himalia.cli.terminal.output import print_error

    print_error(message)
    return code


def _fail_usage(error: TyperException) -> int:
    """Print what is wrong with the command line and where its help is, or the help itself if no command was named."""
    context = getattr(error, "ctx", None)
    message = error.format_message().removeprefix("Invalid value: ")
    if "\n" in message.strip():  # the whole help: no command was named
        typer.echo(message, err=True)
        return error.exit_code
    if context is not None:
        message = f"{message.rstrip('.')}. See '{context.command_path} --help'."
    return _fail(message, error.exit_code)
