"""``himalia up``: the server with the pipeline and, on request, a demo."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from himalia.cli.options import make_app
from himalia.cli.settings_options import read_settings, with_flags
from himalia.cli.terminal.units import parse_duration
from himalia.errors import ConfigurationError, HimaliaError
from himalia.local_server import find_running_servers, page_url
from himalia.log import open_log, sqlite_path
from himalia.settings import Settings

app = make_app()

FLAGS = ("host", "port", "log", "warehouse", "auth")
MEMORY = "memory://"


@app.command("up")
@with_flags(*FLAGS)
def up(
    pipeline: Annotated[
        bool, typer.Option("--pipeline/--no-pipeline", help="Also run the pipeline, which needs Spark.")
    ] = True,
    demo: Annotated[
        bool,
        typer.Option("--demo", help="Also run a demo: a kernel that executes code, and orders that come in."),
    ] = False,
    every: Annotated[
        str, typer.Option("--every", help="How often the pipeline reads the log.", metavar="DURATION")
    ] = "5s",
    **flags: Any,
) -> None:
    """Run the server with its page, and the pipeline, until Ctrl-C.

    The tables are stored next to the log unless --warehouse is given. The other settings of the server can be given as
    environment variables; 'himalia serve --help' lists them.

    Examples:

        himalia up

        himalia up --demo

        himalia up --no-pipeline --port 9000 --log sqlite:///var/lib/himalia/log.db
    """
    parse_duration(every)
    settings = read_settings(flags)
    settings = settings.model_copy(update={"warehouse": _warehouse(settings, flags)})
    _check_alone(settings.log)
    if pipeline or demo:
        _check_key(settings)
    from himalia.cli.process.supervisor import Supervisor

    given = {name: flags[name] for name in ("host", "port", "auth") if flags[name] is not None}
    supervisor = Supervisor(settings, given, every=every if pipeline else None, demo=demo)
    raise typer.Exit(supervisor.run())


def _warehouse(settings: Settings, flags: dict[str, Any]) -> Path:
    """Return the directory of the tables: the given one, else next to the log, so that each log has its own."""
    is_given = flags["warehouse"] is not None or "HIMALIA_WAREHOUSE" in os.environ
    if is_given or not settings.log.lower().startswith("sqlite:"):
        return settings.warehouse.expanduser().absolute()
    return sqlite_path(settings.log).parent / "warehouse"


def _check_key(settings: Settings) -> None:
    """Raise ``ConfigurationError`` if the server makes no token and the pipeline and the demo have no key either."""
    if settings.auth and settings.keys_file is not None and not os.environ.get("HIMALIA_TOKEN"):
        raise ConfigurationError(
            f"with {settings.keys_file} the server makes no token: put a key into HIMALIA_TOKEN with the rights of the "
            "pipeline (subscribe to all, publish and manage 'pipeline.>') and of the demo (everything), "
            "or start without them: --no-pipeline"
        )


def _check_alone(log: str) -> None:
    """Raise an error if a server uses this log already; it names the address of that server."""
    url = open_log(log).url
    for server in find_running_servers():
        if server.log == url != MEMORY:
            raise HimaliaError(
                f"Himalia runs on this log already, at {page_url(server.url, server.token)} "
                f"(process {server.pid}); open that address, stop that server, or name another log with --log"
            )
