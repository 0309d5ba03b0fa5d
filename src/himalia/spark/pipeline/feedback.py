"""Publish the pipeline's results to topics: the rows that a batch changed, and how far the log is read.

The rows of a batch are published under its number, which the log stores with them: a batch that is repeated publishes
the same rows under the same number, and they are stored once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from himalia.errors import HimaliaError, TopicNotFound, Unauthorized
from himalia.protocol.models import PipelinePositions
from himalia.record import Position, Retention
from himalia.retry import TRANSIENT_ERRORS
from himalia.spark.pipeline.server_client import ServerClient
from himalia.topics import PIPELINE_POSITIONS_TOPIC

logger = logging.getLogger("himalia.spark")

POSITIONS_BYTES_MAX = 900_000
POSITIONS_KEPT = Retention(count=10)
BODY_ROWS = 1_000
BODY_BYTES_MAX = 8 << 20
BODIES_MAX = 10_000
"""A batch needs fewer bodies than this for a topic: a sequence combines the numbers of batch and body."""
ROW_BYTES_MAX = 500_000
TEXT_LENGTH_MAX = 4_000
"""The length of each text in a row that exceeds ``ROW_BYTES_MAX``."""
UNPUBLISHED_COLUMNS = ("histogram", "hour")
"""Columns that only merging needs."""


class Feedback:
    """Publishes for one warehouse. Without the rights for it, it warns once and publishes nothing from then on."""

    def __init__(self, server: ServerClient, warehouse_id: str) -> None:
        self._server = server
        self._producer = f"himalia-pipeline-{warehouse_id}"
        self._created: set[str] = set()
        self._is_unauthorized = False

    def publish(self, topic: str, batch: int, rows: pa.Table) -> int:
        """Publish the rows of a batch; a repeated call stores nothing twice. Returns the number of rows."""
        payloads = map(_encode_row, _iterate_dicts(rows))
        count = 0
        for number, body in enumerate(_split_into_bodies(payloads)):
            if not self._publish_or_warn(topic, body, batch * BODIES_MAX + number):
                break
            count += len(body)
        return count

    def publish_positions(self, positions: Mapping[str, Position]) -> None:
        """Publish how far the log is read, for the server's retention to wait for the pipeline."""
        self._publish_or_warn(PIPELINE_POSITIONS_TOPIC, [_encode_positions(positions)])

    def _publish_or_warn(self, topic: str, payloads: Sequence[bytes], sequence: int | None = None) -> bool:
        """Publish; return whether it succeeded. Permanent errors are logged: the tables do not depend on it."""
        if self._is_unauthorized:
            return False
        try:
            self._publish(topic, payloads, sequence)
        except TRANSIENT_ERRORS:
            raise
        except Unauthorized as error:
            self._is_unauthorized = True
            logger.warning(
                "not publishing to pipeline.*: %s. Give the token the rights publish and manage on "
                "'pipeline.>', or run without feedback",
                error.message,
            )
            return False
        except HimaliaError as error:
            logger.warning("cannot publish the changed rows to %s: %s", topic, error.message)
            return False
        return True

    def _publish(self, topic: str, payloads: Sequence[bytes], sequence: int | None) -> None:
        if topic in self._created:
            try:
                self._server.publish(topic, payloads, producer=self._producer, sequence=sequence)
                return
            except TopicNotFound:
                pass  # it was deleted meanwhile
        self._server.create_topic(topic, POSITIONS_KEPT if topic == PIPELINE_POSITIONS_TOPIC else None)
        self._created.add(topic)
        self._server.publish(topic, payloads, producer=self._producer, sequence=sequence)


def select_by_keys(rows: pa.Table, keys: pa.Table) -> pa.Table:
    """Return the rows whose key is in ``keys``, a table of the key columns only."""
    names = keys.column_names
    return rows.filter(
        pc.is_in(_join_columns(rows, names), value_set=_join_columns(keys, names).combine_chunks())
    )


def _join_columns(rows: pa.Table, keys: Sequence[str]) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(
        *(rows[key].cast(pa.string()) for key in keys), "\0", null_handling="replace"
    )


def _iterate_dicts(rows: pa.Table) -> Iterator[dict[str, Any]]:
    shown = rows.select([name for name in rows.column_names if name not in UNPUBLISHED_COLUMNS])
    for batch in shown.to_batches():
        yield from batch.to_pylist()


def _encode_row(row: dict[str, Any]) -> bytes:
    encoded = msgspec.json.encode(row)
    if len(encoded) <= ROW_BYTES_MAX:
        return encoded
    # Lists and long texts; subscribers find them in the table.
    short = {name: _shorten(value) for name, value in row.items() if not isinstance(value, list)}
    return msgspec.json.encode({**short, "truncated": True})


def _shorten(value: Any) -> Any:
    return value[:TEXT_LENGTH_MAX] if isinstance(value, str) else value


def _split_into_bodies(payloads: Iterable[bytes]) -> Iterator[list[bytes]]:
    body: list[bytes] = []
    size = 0
    for payload in payloads:
        if body and (len(body) == BODY_ROWS or size + len(payload) > BODY_BYTES_MAX):
            yield body
            body, size = [], 0
        body.append(payload)
        size += len(payload)
    if body:
        yield body


def _encode_positions(positions: Mapping[str, Position]) -> bytes:
    """Encode all positions, or as many as fit into a message."""
    included = dict(positions)
    while len(encoded := msgspec.json.encode(PipelinePositions(included))) > POSITIONS_BYTES_MAX:
        included = dict(islice(included.items(), len(included) * 3 // 4))
    return encoded
