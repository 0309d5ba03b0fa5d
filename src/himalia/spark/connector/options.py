"""The options of the data source: their names, their values, and the errors for wrong ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Any

from himalia.errors import BadRequest
from himalia.topics import check_name, check_pattern

COMMON_OPTIONS = ("url", "token", "retrySeconds")
"""Options of every reader and writer."""
READ_OPTIONS = (
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "recordsPerPartition",
    "failOnDataLoss",
    "pushFilters",
)
WRITE_OPTIONS = ("topic", "producer", "sequence", "valueFormat", "bytesPerPost")
SPARK_OPTIONS = ("checkpointLocation", "queryName")
"""Spark passes these to every sink."""

RECORDS_PER_PARTITION = 50_000
RETRY_S = 60.0
BYTES_PER_POST = 16 << 20
BODIES_MAX = 1 << 20
"""The most bodies that a task may send to a topic: a sequence combines the number of the write and of the body."""
SEQUENCE_MAX = (1 << 63) // BODIES_MAX - 1
_EARLIEST, _LATEST = -2, -1


@dataclass(frozen=True)
class OffsetSpec:
    """An offset in an option: a number, earliest or latest. Without an epoch it applies to any epoch."""

    offset: int
    epoch: str | None = None

    @property
    def is_explicit(self) -> bool:
        """Whether it is a number, not ``earliest`` or ``latest``."""
        return self.offset >= 0


EARLIEST, LATEST = OffsetSpec(_EARLIEST), OffsetSpec(_LATEST)


@dataclass(frozen=True)
class OffsetsByTopic:
    """Where reading starts or ends: an offset for some topics, and ``default`` for all others."""

    default: OffsetSpec
    by_topic: Mapping[str, OffsetSpec]

    def of(self, topic: str) -> OffsetSpec:
        return self.by_topic.get(topic, self.default)

    @property
    def is_earliest(self) -> bool:
        return not self.by_topic and self.default == EARLIEST

    @property
    def is_latest(self) -> bool:
        return not self.by_topic and self.default == LATEST


@dataclass(frozen=True)
class ReadOptions:
    names: tuple[str, ...]
    """Topics named by ``subscribe``; they have to exist."""
    patterns: tuple[str, ...]
    starting: OffsetsByTopic | None
    """None: the default, which is earliest for a batch and latest for a stream."""
    ending: OffsetsByTopic | None
    since: datetime | None
    records_per_trigger: int | None
    partitions_min: int
    records_per_partition: int
    fails_on_data_loss: bool
    pushes_filters: bool
    retry_s: float


@dataclass(frozen=True)
class WriteOptions:
    topic: str | None
    """None: the topic of a row is in the column ``topic``."""
    producer: str | None
    sequence: int | None
    is_json: bool
    """Whether a value is JSON text; otherwise it is a string, to be encoded as JSON."""
    bytes_per_post: int
    retry_s: float


def parse_read_options(given: Mapping[str, str]) -> ReadOptions:
    """Parse the options of a read. Raises ``BadRequest`` with the option and its allowed values."""
    options = _Options(given, (*COMMON_OPTIONS, *READ_OPTIONS), "reading")
    names = tuple(check_name(name) for name in options.names("subscribe"))
    patterns = tuple(check_pattern(pattern) for pattern in options.names("subscribePattern"))
    if not names and not patterns:
        raise BadRequest(
            "no topics to read; set the option subscribe ('orders,payments') or subscribePattern ('kernels.>')"
        )
    if options.text("startingOffsets") and options.text("startingTimestamp"):
        raise BadRequest(
            "the options startingOffsets and startingTimestamp exclude each other; set one of them"
        )
    return ReadOptions(
        names=names,
        patterns=patterns,
        starting=options.offsets("startingOffsets", EARLIEST),
        ending=options.offsets("endingOffsets", LATEST),
        since=options.time("startingTimestamp"),
        records_per_trigger=options.count("maxOffsetsPerTrigger"),
        partitions_min=options.count("minPartitions") or 1,
        records_per_partition=options.count("recordsPerPartition") or RECORDS_PER_PARTITION,
        fails_on_data_loss=options.flag("failOnDataLoss", default=True),
        pushes_filters=options.flag("pushFilters", default=False),
        retry_s=options.seconds("retrySeconds", RETRY_S),
    )


def parse_write_options(given: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a write. Raises ``BadRequest`` with the option and its allowed values."""
    options = _Options(given, (*COMMON_OPTIONS, *WRITE_OPTIONS, *SPARK_OPTIONS), "writing")
    topic = options.text("topic")
    form = options.text("valueFormat") or "json"
    if form not in ("json", "string"):
        raise BadRequest(f"option valueFormat must be json or string, not {form!r}")
    return WriteOptions(
        topic=None if topic is None else check_name(topic),
        producer=options.text("producer"),
        sequence=options.count("sequence", least=0, most=SEQUENCE_MAX),
        is_json=form == "json",
        bytes_per_post=options.count("bytesPerPost") or BYTES_PER_POST,
        retry_s=options.seconds("retrySeconds", RETRY_S),
    )


class _Options:
    """Parses the values of known options. Names are case-insensitive, as in Spark."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...], purpose: str) -> None:
        by_key = {name.lower(): name for name in known}
        for key in given:
            if key.lower() not in by_key:
                raise BadRequest(_unknown_option(key, by_key, purpose))
        self._given = {by_key[key.lower()]: value for key, value in given.items()}

    def text(self, name: str) -> str | None:
        value = self._given.get(name)
        return value.strip() or None if value is not None else None

    def names(self, name: str) -> list[str]:
        return [part.strip() for part in (self.text(name) or "").split(",") if part.strip()]

    def flag(self, name: str, *, default: bool) -> bool:
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in ("true", "false"):
            raise BadRequest(f"option {name} must be true or false, not {value!r}")
        return value.lower() == "true"

    def count(self, name: str, *, least: int = 1, most: int | None = None) -> int | None:
        value = self.text(name)
        if value is None:
            return None
        # Bounded in length: Python refuses to convert very long numbers, with an unrelated message.
        is_number = value.isascii() and value.isdigit() and len(value) < 19
        if not is_number or int(value) < least or (most is not None and int(value) > most):
            reach = "on" if most is None else f"to {most}"
            raise BadRequest(f"option {name} must be a whole number from {least} {reach}, not {value!r}")
        return int(value)

    def seconds(self, name: str, default: float) -> float:
        value = self.text(name)
        try:
            found = default if value is None else float(value)
        except ValueError:
            found = -1.0
        if not 0 <= found < float("inf"):
            raise BadRequest(f"option {name} must be a number of seconds, not {value!r}")
        return found

    def time(self, name: str) -> datetime | None:
        value = self.text(name)
        if value is None:
            return None
        try:
            # Digits are milliseconds, as in the Kafka source.
            if value.isascii() and value.isdigit():
                return datetime.fromtimestamp(int(value) / 1000, UTC)
            found = datetime.fromisoformat(value)
        except (ValueError, OverflowError, OSError):
            raise BadRequest(
                f"option {name} must be a time such as 2026-11-16T02:00:00Z, or milliseconds since 1970, not {value!r}"
            ) from None
        return found if found.tzinfo else found.replace(tzinfo=UTC)

    def offsets(self, name: str, default: OffsetSpec) -> OffsetsByTopic | None:
        value = self.text(name)
        if value is None:
            return None
        words = {"earliest": EARLIEST, "latest": LATEST}
        if value.lower() in words:
            return OffsetsByTopic(words[value.lower()], {})
        try:
            by_topic = json.loads(value)
            if not isinstance(by_topic, dict):
                raise ValueError
            return OffsetsByTopic(default, {topic: _parse_offset(value) for topic, value in by_topic.items()})
        except ValueError:
            shown = value if len(value) <= 60 else value[:57] + "..."
            raise BadRequest(
                f'option {name} must be earliest, latest, or JSON like {{"orders": 23, "payments": -2}} '
                f"(-2 earliest, -1 latest), not {shown!r}"
            ) from None


def _parse_offset(value: Any) -> OffsetSpec:
    """Parse an offset from JSON: ``23`` or ``{"offset": 23, "epoch": "..."}``."""
    if isinstance(value, dict) and value.keys() <= {"offset", "epoch"}:
        offset, epoch = value.get("offset"), value.get("epoch")
    else:
        offset, epoch = value, None
    if not isinstance(offset, int) or isinstance(offset, bool) or offset < _EARLIEST:
        raise ValueError
    if not isinstance(epoch, str | None):
        raise ValueError
    # Earliest and latest apply to any epoch.
    return OffsetSpec(offset, epoch if offset >= 0 else None)


def _unknown_option(key: str, by_key: Mapping[str, str], purpose: str) -> str:
    close = get_close_matches(key.lower(), by_key, n=1)
    hint = f"did you mean {by_key[close[0]]}?" if close else f"there are {', '.join(by_key.values())}"
    return f"{key!r} is not an option for {purpose} topics; {hint}"
