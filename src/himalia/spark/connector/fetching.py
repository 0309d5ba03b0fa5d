"""Fetching ranges as Arrow record batches, on executors."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa

from himalia.errors import EpochChanged, TopicNotFound
from himalia.spark.connector.columns import as_columns
from himalia.spark.connector.connection import Connection, topic_path
from himalia.spark.connector.patience import MOMENTARY, Patience
from himalia.spark.connector.ranges import Range

ARROW = "application/vnd.apache.arrow.stream"


def fetched(
    connection: Connection, wanted: Range, retry_s: float, on_loss: Callable[[str, int, int], None]
) -> Iterator[pa.RecordBatch]:
    """The records of a range, each once and in order.

    A connection that breaks is made again, and reading goes on after the last record that came. ``on_loss(topic,
    start, stop)`` is told of records that are gone; if it returns, reading goes on with what is there.
    """
    at = wanted.start
    patience = Patience(retry_s)
    while at < wanted.stop:
        rest = Range(wanted.topic, wanted.epoch, at, wanted.stop)
        came = False
        try:
            for batch in _asked(connection, rest):
                came = True
                first = batch.column(1)[0].as_py()
                if first > at:
                    on_loss(wanted.topic, at, min(first, wanted.stop))
                if first >= wanted.stop:
                    return
                # What was asked for by count can reach further than the range, if its beginning is gone.
                batch = batch.slice(0, wanted.stop - first)
                yield as_columns(batch)
                # Only now: what took long may have been whoever got the batch.
                patience.renew()
                at = first + batch.num_rows
        except (TopicNotFound, EpochChanged):
            on_loss(wanted.topic, at, wanted.stop)
            return
        except MOMENTARY as error:
            patience.wait(error)
        else:
            if not came:
                on_loss(wanted.topic, at, wanted.stop)
                return


def _asked(connection: Connection, wanted: Range) -> Iterator[pa.RecordBatch]:
    query = {"from": wanted.start, "limit": len(wanted), "epoch": wanted.epoch}
    path = topic_path(wanted.topic, "messages")
    with connection.open("GET", path, query, headers={"Accept": ARROW}) as response:
        try:
            with pa.ipc.open_stream(response) as stream:
                for batch in stream:
                    if batch.num_rows:
                        yield batch
        except pa.ArrowInvalid:
            raise connection.foreign(response.status) from None
        # The end of the body, so that the connection can be used again.
        response.read()
