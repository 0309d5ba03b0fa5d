"""Results flow back: what changed in some tables is published to topics, and how far the log has been read.

A batch's rows are published under its number, which the log stores beside them. A batch that is run again publishes the
same rows under the same number, and they are stored once.
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
from himalia.record import Position
from himalia.retry import TRANSIENT_ERRORS
from himalia.spark.pipeline.server_client import Server

logger = logging.getLogger("himalia.spark")

POSITIONS_TOPIC = "pipeline.positions"
POSITIONS_BYTES_MAX = 900_000
POSITIONS_KEPT = {"count": 10}
BODY_ROWS = 1_000
BODY_BYTES_MAX = 8 << 20
BODIES_MAX = 10_000
"""More bodies than this cannot come of one batch; their numbers follow the batch's."""
ROW_BYTES_MAX = 500_000
TEXT_LENGTH_MAX = 4_000
"""Of each text in a row that is longer than that."""
LEFT_OUT = ("histogram", "hour")
"""Columns that only merging needs."""


class Feedback:
    """Publishes for one warehouse. Without the right to do so it warns once, and is silent from then on."""

    def __init__(self, server: Server, warehouse_id: str) -> None:
        self._server = server
        self._producer = f"himalia-pipeline-{warehouse_id}"
        self._made: set[str] = set()
        self._is_refused = False

    def publish(self, topic: str, batch: int, rows: pa.Table) -> int:
        """Publish the rows of a batch, exactly once however often it is called with them. Returns how many."""
        payloads = map(_payload, _as_dicts(rows))
        count = 0
        for number, body in enumerate(_bodies(payloads)):
            if not self._tell(topic, body, batch * BODIES_MAX + number):
                break
            count += len(body)
        return count

    def tell_positions(self, positions: Mapping[str, Position]) -> None:
        """Tell the server how far the log has been read, so that retention waits. Told twice it is as true."""
        self._tell(POSITIONS_TOPIC, [_positions_payload(positions)])

    def _tell(self, topic: str, payloads: Sequence[bytes], sequence: int | None = None) -> bool:
        """Whether it was published. What does not pass by itself is said: the tables are whole without it."""
        if self._is_refused:
            return False
        try:
            self._publish(topic, payloads, sequence)
        except TRANSIENT_ERRORS:
            raise
        except Unauthorized as error:
            self._is_refused = True
            logger.warning(
                "nothing is published to pipeline.*: %s. Give the token the rights publish and manage on "
                "'pipeline.>', or run without feedback",
                error.message,
            )
            return False
        except HimaliaError as error:
            logger.warning("what changed is not published to %s this time: %s", topic, error.message)
            return False
        return True

    def _publish(self, topic: str, payloads: Sequence[bytes], sequence: int | None) -> None:
        if topic in self._made:
            try:
                self._server.publish(topic, payloads, producer=self._producer, sequence=sequence)
                return
            except TopicNotFound:
                pass  # somebody deleted it meanwhile
        self._server.create_topic(topic, POSITIONS_KEPT if topic == POSITIONS_TOPIC else None)
        self._made.add(topic)
        self._server.publish(topic, payloads, producer=self._producer, sequence=sequence)


def changed(rows: pa.Table, touched: pa.Table) -> pa.Table:
    """The rows whose key is among those touched, which hold nothing but keys."""
    keys = touched.column_names
    return rows.filter(pc.is_in(_joined(rows, keys), value_set=_joined(touched, keys).combine_chunks()))


def _joined(rows: pa.Table, keys: Sequence[str]) -> pa.ChunkedArray:
    return pc.binary_join_element_wise(
        *(rows[key].cast(pa.string()) for key in keys), "\0", null_handling="replace"
    )


def _as_dicts(rows: pa.Table) -> Iterator[dict[str, Any]]:
    shown = rows.select([name for name in rows.column_names if name not in LEFT_OUT])
    for batch in shown.to_batches():
        yield from batch.to_pylist()


def _payload(row: dict[str, Any]) -> bytes:
    encoded = msgspec.json.encode(row)
    if len(encoded) <= ROW_BYTES_MAX:
        return encoded
    # Lists and texts can be that long; what is told live need not hold all of them.
    short = {name: _shortened(value) for name, value in row.items() if not isinstance(value, list)}
    return msgspec.json.encode({**short, "truncated": True})


def _shortened(value: Any) -> Any:
    return value[:TEXT_LENGTH_MAX] if isinstance(value, str) else value


def _bodies(payloads: Iterable[bytes]) -> Iterator[list[bytes]]:
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


def _positions_payload(positions: Mapping[str, Position]) -> bytes:
    """All of them, or as many as a message can hold."""
    chosen = dict(positions)
    while len(encoded := msgspec.json.encode({"positions": chosen})) > POSITIONS_BYTES_MAX:
        chosen = dict(islice(chosen.items(), len(chosen) * 3 // 4))
    return encoded
