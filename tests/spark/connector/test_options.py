"""The connector's options: what they may be, and what is said of those that are not right."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest

from himalia.errors import BadRequest
from himalia.spark.connector.options import (
    BODIES_MAX,
    SEQUENCE_MAX,
    OffsetSpec,
    parse_read_options,
    parse_write_options,
)


def test_names_are_compared_without_their_case() -> None:
    options = parse_read_options(
        {"SUBSCRIBE": "orders", "startingoffsets": "earliest", "FailOnDataLoss": "FALSE"}
    )
    assert options.names == ("orders",)
    assert not options.fails_on_data_loss


def test_topics_and_patterns_are_listed_by_commas() -> None:
    options = parse_read_options({"subscribe": " orders, payments ,", "subscribePattern": "kernels.>,a.*"})
    assert options.names == ("orders", "payments")
    assert options.patterns == ("kernels.>", "a.*")


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ('{"orders": 23}', OffsetSpec(23)),
        ('{"orders": -2}', OffsetSpec(-2)),
        ('{"orders": {"offset": 23, "epoch": "e1"}}', OffsetSpec(23, "e1")),
        ('{"orders": {"offset": 0}}', OffsetSpec(0)),
        ('{"orders": {"offset": -1, "epoch": "e1"}}', OffsetSpec(-1)),
        ('{"others": 3}', OffsetSpec(-2)),
        ("EARLIEST", OffsetSpec(-2)),
        ("latest", OffsetSpec(-1)),
    ],
)
def test_offsets_are_words_or_json(text: str, at: OffsetSpec) -> None:
    """A topic that the JSON leaves out starts at its earliest record."""
    starting = parse_read_options({"subscribe": "orders", "startingOffsets": text}).starting
    assert starting is not None
    assert starting.of("orders") == at


def test_ten_thousand_topics_have_offsets() -> None:
    """The pipeline names every topic that it reads."""
    names = [f"kernels.{number}" for number in range(10_000)]
    by_topic = ",".join(f'"{name}": {{"offset": {i}, "epoch": "e"}}' for i, name in enumerate(names))
    options = parse_read_options({"subscribe": ",".join(names), "startingOffsets": f"{{{by_topic}}}"})
    assert len(options.names) == 10_000
    assert options.starting is not None
    assert options.starting.of("kernels.77") == OffsetSpec(77, "e")


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-16T02:00:00Z", datetime(2026, 11, 16, 2, tzinfo=UTC)),
        ("2026-11-16T02:00:00", datetime(2026, 11, 16, 2, tzinfo=UTC)),
        ("2026-11-16T03:00:00+01:00", datetime(2026, 11, 16, 2, tzinfo=UTC)),
        ("1794794400500", datetime(2026, 11, 16, 2, 0, 0, 500_000, tzinfo=UTC)),
    ],
)
def test_a_time_is_iso_8601_or_milliseconds(text: str, moment: datetime) -> None:
    assert parse_read_options({"subscribe": "orders", "startingTimestamp": text}).since == moment


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "no topics to read"),
        ({"subscrib": "orders"}, "'subscrib' is not an option for reading topics; did you mean subscribe?"),
        (
            {"subscribe": "orders", "xyz": "1"},
            "'xyz' is not an option for reading topics; there are url, token",
        ),
        ({"subscribe": "orders/1"}, "'orders/1' is not a topic name"),
        ({"subscribePattern": "a.>.b"}, "'a.>.b' is not a topic pattern"),
        ({"startingOffsets": "first"}, "option startingOffsets must be earliest, latest, or JSON"),
        ({"startingOffsets": "[1]"}, "option startingOffsets must be earliest, latest, or JSON"),
        ({"startingOffsets": '{"orders": -3}'}, "option startingOffsets must be earliest, latest, or JSON"),
        ({"startingOffsets": '{"orders": true}'}, "option startingOffsets must be earliest, latest, or JSON"),
        (
            {"startingOffsets": '{"orders": {"ofset": 1}}'},
            "option startingOffsets must be earliest, latest, or JSON",
        ),
        ({"endingOffsets": '{"orders": 1.5}'}, "option endingOffsets must be earliest, latest, or JSON"),
        ({"startingTimestamp": "yesterday"}, "option startingTimestamp must be a time such as"),
        ({"startingOffsets": "earliest", "startingTimestamp": "0"}, "exclude each other"),
        ({"minPartitions": "0"}, "option minPartitions must be a whole number from 1 on, not '0'"),
        ({"maxOffsetsPerTrigger": "many"}, "option maxOffsetsPerTrigger must be a whole number"),
        ({"maxOffsetsPerTrigger": "9" * 5000}, "option maxOffsetsPerTrigger must be a whole number"),
        ({"failOnDataLoss": "no"}, "option failOnDataLoss must be true or false, not 'no'"),
        ({"retrySeconds": "-1"}, "option retrySeconds must be a number of seconds"),
        ({"retrySeconds": "inf"}, "option retrySeconds must be a number of seconds"),
    ],
)
def test_what_is_wrong_is_told_in_a_sentence(given: dict[str, str], told: str) -> None:
    """The option is named, and what it may be."""
    if given and not any(name.startswith("subscr") for name in given):
        given = {"subscribe": "orders", **given}
    with pytest.raises(BadRequest, match=re.escape(told)):
        parse_read_options(given)


def test_writing_has_options_of_its_own() -> None:
    options = parse_write_options(
        {"topic": "orders", "checkpointLocation": "/tmp/x", "valueFormat": "string"}
    )
    assert options.topic == "orders"
    assert not options.is_json
    with pytest.raises(BadRequest, match="'subscribe' is not an option for writing topics"):
        parse_write_options({"subscribe": "orders"})
    with pytest.raises(BadRequest, match="valueFormat must be json or string, not 'xml'"):
        parse_write_options({"valueFormat": "xml"})


def test_a_sequence_is_one_that_the_server_can_store() -> None:
    """With the numbers of all bodies that a task may send: 63 bits. A date fits, a time to the second does not."""
    assert parse_write_options({"sequence": str(SEQUENCE_MAX)}).sequence == SEQUENCE_MAX
    assert SEQUENCE_MAX * BODIES_MAX + BODIES_MAX - 1 == (1 << 63) - 1
    for number in (str(SEQUENCE_MAX + 1), "20261116093000"):
        told = f"option sequence must be a whole number from 0 to {SEQUENCE_MAX}, not '{number}'"
        with pytest.raises(BadRequest, match=told):
            parse_write_options({"sequence": number})
