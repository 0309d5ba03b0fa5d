"""``himalia up``: the server, the pipeline beside it and, if asked for, something to look at."""

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
        bool, typer.Option("--pipeline/--no-pipeline", help="Run the pipeline too, which needs Spark.")
    ] = True,
    demo: Annotated[
        bool, typer.Option("--demo", help="Start a kernel that does a little work, and publish orders.")
    ] = False,
    every: Annotated[
        str, typer.Option("--every", help="How often the pipeline looks for more.", metavar="DURATION")
    ] = "5s",
    **flags: Any,
) -> None:
    """Run the server, with its page, and the pipeline beside it until Ctrl-C, which ends all of it.

    The tables are beside the log unless --warehouse says otherwise. All other settings of the server can be given as
    environment variables; 'himalia serve --help' names them.

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
    from himalia.cli.process.supervisor import Ensemble

    given = {name: flags[name] for name in ("host", "port", "auth") if flags[name] is not None}
    ensemble = Ensemble(settings, given, every=every if pipeline else None, demo=demo)
    raise typer.Exit(ensemble.run())


def _warehouse(settings: Settings, flags: dict[str, Any]) -> Path:
    """Where the tables are: as said, else beside the log. Each log has its own."""
    is_said = flags["warehouse"] is not None or "HIMALIA_WAREHOUSE" in os.environ
    if is_said or not settings.log.lower().startswith("sqlite:"):
        return settings.warehouse.expanduser().absolute()
    return sqlite_path(settings.log).parent / "warehouse"


def _check_key(settings: Settings) -> None:
    """Raises if the server makes no token of its own, and those beside it have no key either."""
    if settings.auth and settings.keys_file is not None and not os.environ.get("HIMALIA_TOKEN"):
        raise ConfigurationError(
            f"with {settings.keys_file} the server makes no token: put a key into HIMALIA_TOKEN that may do what the "
            "pipeline does (subscribe to all, publish and manage 'pipeline.>') and what the demo does (everything), "
            "or start without them: --no-pipeline"
        )


def _check_alone(log: str) -> None:
    """Raises if a server has this log already, and says where that is."""
    url = open_log(log).url
    for server in find_running_servers():
        if server.log == url != MEMORY:
            raise HimaliaError(
                f"Himalia runs on this log already, at {page_url(server.url, server.token)} "
                f"(process {server.pid}); open that, stop it, or give this one another --log"
            )
