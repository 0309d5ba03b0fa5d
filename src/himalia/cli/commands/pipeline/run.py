"""``himalia pipeline run``: the log into tables, once or from now on."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from himalia.cli.commands.pipeline.wait import wait_for_other
from himalia.cli.options import Json, Token, Url, WarehouseOption, make_app, warehouse_path
from himalia.cli.process.signals import Stopping
from himalia.cli.terminal.output import print_json, write_line
from himalia.cli.terminal.pipeline_progress import display, sentence
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
"""The server beside it goes first: people wait for that, and a table may be a second later."""
STOPPED = "stopped; the next run takes up what was under way"


@app.command("run")
def run_pipeline(
    once: Annotated[bool, typer.Option("--once", help="Process what is in the log now, then exit.")] = False,
    every: Annotated[
        str | None,
        typer.Option("--every", help="Look for more so often, until Ctrl-C: 5s, 1m.", metavar="DURATION"),
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
            "--batch-records", help="About so many records in one batch, a tenth more at most.", min=1
        ),
    ] = BATCH_RECORDS,
    feedback: Annotated[
        bool, typer.Option("--feedback/--no-feedback", help="Publish results to pipeline.* topics.")
    ] = True,
    fail_on_data_loss: Annotated[
        bool,
        typer.Option("--fail-on-data-loss", help="End with an error if records went before they were read."),
    ] = False,
    warehouse: WarehouseOption = None,
    url: Url = None,
    token: Token = None,
    json: Json = False,
) -> None:
    """Turn the log into tables, with Spark, and go on where the last run stopped.

    Every record is taken in exactly once, however a run ends. Ctrl-C and SIGTERM end it after its batch. Progress is on
    stderr. --json prints a line for each batch and one for the whole at the end. Beside a pipeline that runs, such as
    that of himalia up, --once waits until that one has taken in what is in the log now.

    Examples:

        himalia pipeline run --once

        himalia pipeline run --every 5s --topics 'kernels.>' --topics orders

        himalia pipeline run --every 1m --master spark://10.0.0.7:7077 --warehouse /shared/warehouse
    """
    if once == (every is not None):
        raise typer.BadParameter("give --once, or --every and a time such as 5s")
    every_s = None if every is None else parse_duration(every)
    path = warehouse_path(warehouse)
    make, make_options, use_java = _load()
    if master.startswith("local"):
        os.nice(NICENESS)  # Spark and its workers are children of this process
    with Stopping() as stopping, display(json=json) as shown:
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
            on_progress=shown.show,
        )
        try:
            summary = _run(
                pipeline, every_s, stopping, lambda: shown.say(f"{java}; Spark on {master}; tables in {path}")
            )
        except WarehouseLocked as locked:
            if not once:
                raise
            shown.say(f"waiting for the pipeline that runs: {locked.data['holder']}")
            with SyncClient(url or None, token or None) as client:
                wait_for_other(client, path, topics or [">"], locked)
            _tell_other(locked, json=json)
            return
    _tell(summary, json=json)
    stopping.finish()


def _run(
    pipeline: Pipeline, every_s: float | None, stopping: Stopping, on_started: Callable[[], None]
) -> Summary | None:
    """What it did; None if it was stopped in a way that left no time to say."""
    summary = None
    try:
        with stopping.by(pipeline.stop), pipeline as loop, stopping.at_work():
            on_started()
            summary = loop.run_once() if every_s is None else loop.run(every_s)
    except Exception:
        # Whoever stops us may have stopped Spark in the same moment. The next run takes up what was under way.
        if not stopping.is_asked:
            raise
    return summary


def _tell(summary: Summary | None, *, json: bool) -> None:
    if summary is not None and json:
        print_json(summary)
    elif not json:
        write_line(sentence(summary) if summary else STOPPED)


def _tell_other(locked: WarehouseLocked, *, json: bool) -> None:
    if json:
        print_json({"taken_in_by": locked.data["holder"]})
    else:
        write_line(f"a pipeline runs already and has taken in what was in the log: {locked.data['holder']}")


def _load() -> tuple[type[Pipeline], type[PipelineOptions], Callable[[], Java]]:
    try:
        from himalia.spark.pipeline.runner import Pipeline, PipelineOptions
        from himalia.spark.session import use_java
    except ImportError as error:
        raise ConfigurationError(
            f"the pipeline needs PySpark: pip install 'himalia[spark]' ({error})"
        ) from None
    return Pipeline, PipelineOptions, use_java
