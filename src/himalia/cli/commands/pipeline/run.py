"""``himalia pipeline run``: the log into tables, once or from now on."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from himalia.cli.commands.pipeline.wait import wait_for_other
from himalia.cli.options import Json, Token, Url, WarehouseOption, make_app, warehouse_path
from himalia.cli.process.signals import GracefulStop
from himalia.cli.terminal.output import print_json, write_line
from himalia.cli.terminal.pipeline_progress import format_summary, open_display
from himalia.cli.terminal.units import parse_duration
from himalia.client import SyncClient
from himalia.errors import ConfigurationError, WarehouseLocked

if TYPE_CHECKING:
    from himalia.spark.java import Java
    from himalia.spark.pipeline.progress import Summary
    from himalia.spark.pipeline.runner import Pipeline, PipelineOptions

app = make_app()

BATCH_RECORDS = 1_000_000
NICENESS = 10
"""The server on the same machine has priority: users wait for it, and a table may be a second later."""
STOPPED = "stopped; the next run continues where this one ended"


@app.command("run")
def run_pipeline(
    once: Annotated[bool, typer.Option("--once", help="Process what is in the log now, then exit.")] = False,
    every: Annotated[
        str | None,
        typer.Option(
            "--every", help="Read the log at this interval until Ctrl-C: 5s, 1m.", metavar="DURATION"
        ),
    ] = None,
    topics: Annotated[
        list[str] | None,
        typer.Option("--topics", help="Only topics of this pattern; repeatable.", metavar="PATTERN"),
    ] = None,
    master: Annotated[
        str, typer.Option("--master", help="Where Spark runs: local[N], spark://host:port.", metavar="URL")
    ] = "local[*]",
    batch_records: Annotated[
        int,
        typer.Option(
            "--batch-records", help="About this many records in one batch, a tenth more at most.", min=1
        ),
    ] = BATCH_RECORDS,
    feedback: Annotated[
        bool, typer.Option("--feedback/--no-feedback", help="Publish results to pipeline.* topics.")
    ] = True,
    fail_on_data_loss: Annotated[
        bool,
        typer.Option(
            "--fail-on-data-loss", help="End with an error if records were deleted before they were read."
        ),
    ] = False,
    warehouse: WarehouseOption = None,
    url: Url = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Turn the log into tables with Spark, continuing where the last run ended.

    Every record is stored exactly once, however a run ends. Ctrl-C and SIGTERM end the run after its batch. Progress
    goes to stderr. --json prints a line for each batch, and a summary at the end. If a pipeline runs on the same tables
    already, such as that of himalia up, --once waits until that one has read what is in the log now.

    Examples:

        himalia pipeline run --once

        himalia pipeline run --every 5s --topics 'kernels.>' --topics orders

        himalia pipeline run --every 1m --master spark://10.0.0.7:7077 --warehouse /shared/warehouse
    """
    if once == (every is not None):
        raise typer.BadParameter("give --once, or --every with an interval such as 5s")
    every_s = None if every is None else parse_duration(every)
    path = warehouse_path(warehouse)
    make, make_options, use_java = _load()
    if master.startswith("local"):
        os.nice(NICENESS)  # Spark and its workers are children of this process
    with GracefulStop() as stop, open_display(json=json) as display:
        java = use_java()
        pipeline = make(
            url or None,
            token or None,
            path,
            make_options(
                master=master,
                topics=topics or [">"],
                batch_records=batch_records,
                feedback=feedback,
                fail_on_data_loss=fail_on_data_loss,
            ),
            on_progress=display.show,
        )
        try:
            summary = _run(
                pipeline, every_s, stop, lambda: display.note(f"{java}; Spark on {master}; tables in {path}")
            )
        except WarehouseLocked as locked:
            if not once:
                raise
            display.note(f"waiting for the pipeline that is running: {locked.data['holder']}")
            with SyncClient(url or None, token or None) as client:
                wait_for_other(client, path, topics or [">"], locked)
            _print_other(locked, json=json)
            return
    _print_summary(summary, json=json)
    stop.finish()


def _run(
    pipeline: Pipeline, every_s: float | None, stop: GracefulStop, on_started: Callable[[], None]
) -> Summary | None:
    """Run the pipeline and return its summary; None if it was stopped before there was one."""
    summary = None
    try:
        with stop.call_on_signal(pipeline.stop), pipeline as loop, stop.defer_exit():
            on_started()
            summary = loop.run_once() if every_s is None else loop.run(every_s)
    except Exception:
        # The signal may have ended Spark too. The next run continues the batch that was interrupted.
        if not stop.is_requested:
            raise
    return summary


def _print_summary(summary: Summary | None, *, json: bool) -> None:
    if summary is not None and json:
        print_json(summary)
    elif not json:
        write_line(format_summary(summary) if summary else STOPPED)


def _print_other(locked: WarehouseLocked, *, json: bool) -> None:
    if json:
        print_json({"taken_in_by": locked.data["holder"]})
    else:
        write_line(f"a pipeline runs already and has read what was in the log: {locked.data['holder']}")


def _load() -> tuple[type[Pipeline], type[PipelineOptions], Callable[[], Java]]:
    try:
        from himalia.spark.pipeline.runner import Pipeline, PipelineOptions
        from himalia.spark.session import use_java
    except ImportError as error:
        raise ConfigurationError(
            f"the pipeline needs PySpark: pip install 'himalia[spark]' ({error})"
        ) from None
    return Pipeline, PipelineOptions, use_java
