"""A toy command. It becomes ``himalia/cli/commands/toy.py`` in a copy of the package."""

from __future__ import annotations

import typer

from himalia.cli.options import make_app
from himalia.cli.terminal.output import write_line

app = make_app()


@app.command()
def toy(word: str = typer.Argument(help="What to print.")) -> None:
    """Print a word twice.

    Example:

        himalia toy hello
    """
    write_line(f"{word} {word}")
