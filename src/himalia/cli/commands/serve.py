"""``himalia serve``: every setting is a flag of it."""

from __future__ import annotations

from typing import Any

import typer

from himalia.cli.settings_options import read_settings, with_flags
from himalia.cli.terminal.output import abandon_stdout, write_line
from himalia.local_server import page_url
from himalia.settings import Settings

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command("serve")
@with_flags(*Settings.model_fields)
def serve_command(**flags: Any) -> None:
    """Run the server until Ctrl-C.

    Every setting is a flag and an environment variable; a flag wins.

    Examples:

        himalia serve

        himalia serve --port 9000 --log sqlite:///var/lib/himalia/log.db

        HIMALIA_RETENTION_AGE_S=86400 himalia serve --no-auth
    """
    settings = read_settings(flags)
    from himalia.server import serve

    serve(settings, on_started=_announce)


def _announce(url: str, token: str | None) -> None:
    """The address to open, as Jupyter prints it; on stdout, where a program that started us can read it."""
    try:
        write_line(f"Himalia is ready at {page_url(url, token)} (Ctrl-C stops it)")
    except OSError:  # nobody reads our stdout, which is no reason to stop serving
        abandon_stdout()
