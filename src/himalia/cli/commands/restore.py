"""``himalia restore``: replace the log by a backup."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from himalia.cli.commands.backup import LogUrl, log_path, print_report, progress_bar
from himalia.cli.options import Json, make_app

app = make_app()


@app.command("restore")
def restore_command(
    backup: Annotated[Path, typer.Argument(help="A file that 'himalia backup' wrote.")],
    log: LogUrl = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing log.")] = False,
    json: Json = False,
) -> None:
    """Replace the log by a backup. The server must not be running.

    Topics get new epochs: a subscriber whose position is beyond the backup gets a gap, and never other records at
    offsets that it knows.

    Examples:

        himalia restore orders-2026-11-15.db --force

        himalia restore /backups/log.db --log sqlite:///var/lib/himalia/log.db
    """
    from himalia.log.sqlite.backup import restore

    with progress_bar("restoring") as progress:
        report = restore(backup, log_path(log), force=force, progress=progress)
    print_report("restored", report, json=json)
