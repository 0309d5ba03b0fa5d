"""Where the tables are, as the pipeline's commands are told."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from himalia.local_server import checked_warehouse, default_warehouse

WarehouseOption = Annotated[
    Path | None,
    typer.Option(
        "--warehouse",
        help="The directory of the tables; by default beside the default log.",
        envvar="HIMALIA_WAREHOUSE",
        show_envvar=True,
        metavar="PATH",
    ),
]
Where = Annotated[
    str | None,
    typer.Option("--where", help="Only rows for which this SQL condition holds.", metavar="SQL"),
]


def warehouse_path(given: Path | None) -> Path:
    return checked_warehouse(given or default_warehouse()).expanduser()
