"""``himalia backup``: copy the log to a file; the server may be running."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from himalia.cli.options import Json, make_app
from himalia.cli.terminal.output import print_json, write_line
from himalia.cli.terminal.units import format_size

if TYPE_CHECKING:
    from himalia.log.sqlite.backup import BackupReport

app = make_app()

LogUrl = Annotated[
    str | None,
    typer.Option(
        "--log", help="The log; by default the server's default.", envvar="HIMALIA_LOG", show_envvar=True
    ),
]


def log_path(url: str | None) -> Path:
    """Return the file of a log. Raise ``ConfigurationError`` if the log is not in a file."""
    from himalia.errors import ConfigurationError
    from himalia.log import sqlite_path
    from himalia.settings import default_log_url

    url = url or default_log_url()
    if not url.lower().startswith("sqlite:"):
        raise ConfigurationError(
            f"only a log in a file (sqlite:) can be backed up, restored or changed, not {url!r}", url=url
        )
    return sqlite_path(url)


@app.command("backup")
def backup_command(
    target: Annotated[Path, typer.Argument(help="The file to write.")],
    log: LogUrl = None,
    json: Json = False,
) -> None:
    """Copy the log to a file. The server may be running: the copy is a consistent snapshot.

    Examples:

        himalia backup orders-2026-11-15.db

        himalia backup /backups/log.db --log sqlite:///var/lib/himalia/log.db
    """
    from himalia.log.sqlite.backup import backup

    with progress_bar("backing up") as progress:
        report = backup(log_path(log), target, progress=progress)
    print_report("backed up", report, json=json)


def print_report(status: str, report: BackupReport, *, json: bool) -> None:
    """Print the contents of a backup or a restored log: topics, records, bytes."""
    if json:
        print_json(
            {
                "status": status,
                "path": str(report.path),
                "topics": report.topics,
                "records": report.records,
                "bytes": report.bytes,
            }
        )
    else:
        topics = "1 topic" if report.topics == 1 else f"{report.topics} topics"
        records = "1 record" if report.records == 1 else f"{report.records} records"
        write_line(f"{status} {report.path}: {topics}, {records}, {format_size(report.bytes)}")


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar if stderr is a terminal; yield a function to call with the part done and the total."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
