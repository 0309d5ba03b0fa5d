"""Posting lines to topics, each body exactly once, on executors."""

from __future__ import annotations

from typing import Any

from himalia.errors import BadRequest
from himalia.spark.connector.connection import Connection, topic_path
from himalia.spark.connector.failing import tell_superseded
from himalia.spark.connector.options import BODIES_MAX, WriteOptions
from himalia.spark.connector.patience import patiently

NDJSON = "application/x-ndjson"


class Poster:
    """Sends what one task writes under a producer's name: a body for each topic, several if it would be too long.

    The server keeps the last sequence of each producer and topic beside the records, so that a body which is sent
    again, at once or much later, is recognised. A task that is repeated must cut its rows into the same bodies: one
    body's rows may come in any order, those of several only in the same.
    """

    def __init__(self, connection: Connection, options: WriteOptions, producer: str, batch: int) -> None:
        self._connection = connection
        self._options = options
        self._producer = producer
        self._first_sequence = batch * BODIES_MAX
        self._bodies: dict[str, bytearray] = {}
        self._sent: dict[str, int] = {}
        # Whether the topic's last body was. Those before it are, whenever a task is repeated.
        self._superseded: dict[str, bool] = {}

    def add(self, topic: str, line: bytes) -> None:
        body = self._bodies.setdefault(topic, bytearray())
        if body and len(body) + len(line) > self._options.bytes_per_post:
            self._post(topic)
        body += line

    def finish(self) -> None:
        for topic, body in self._bodies.items():
            if body:
                self._post(topic)
        for topic, superseded in self._superseded.items():
            if superseded:
                tell_superseded(topic, self._producer)

    def _post(self, topic: str) -> None:
        number = self._sent.get(topic, 0)
        if number >= BODIES_MAX:
            raise BadRequest(f"a task sends at most {BODIES_MAX} bodies to a topic; use more partitions")
        body = self._bodies[topic]
        query = {"producer": self._producer, "sequence": self._first_sequence + number}

        def send() -> bool:
            path, headers = topic_path(topic, "messages"), {"Content-Type": NDJSON}
            return self._connection.ask("POST", path, _is_superseded, query, bytes(body), headers)

        self._superseded[topic] = patiently(send, self._options.retry_s)
        self._sent[topic] = number + 1
        body.clear()


def _is_superseded(told: Any) -> bool:
    """Whether a body was not stored, nor is the last that was: of a repeat of that one the place is known."""
    return int(told["duplicates"]) > 0 and "first" not in told
