"""What docs/protocol.md shows is what a server does."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec
import pytest

from himalia.errors import FilterFailed
from himalia.protocol import ClientMessage, ServerMessage
from himalia.pubsub.filters import compile_filter
from himalia.record import Record
from himalia.server.identity import read_keys
from himalia.server.identity.keys_file import KeysFile
from tests.docs.examples import Examples, Mismatch, Values, expected_json
from tests.docs.markdown import Block, blocks, code_spans, rows, section
from tests.server.identity.credentials import write_keys
from tests.servers import RunningServer
from tests.tables.sample import write_sample


def test_the_examples_run_in_document_order(
    protocol: str,
    operations: str,
    server: RunningServer,
    serve: Callable[..., RunningServer],
    tmp_path: Path,
) -> None:
    """Every ``ws``, ``http`` and ``sse`` block is answered as it says, to the field."""
    [documented] = [block for block in blocks(operations) if block.kind == "toml"]
    keys_file = write_keys(tmp_path / "keys.toml", documented.text)
    # Nobody knows the keys of the document, so each gets a new one.
    keys = {f"${key.name}key": KeysFile(keys_file).rotate(key.name) for key in read_keys(keys_file)}
    write_sample(server.settings.warehouse)

    @cache
    def secured() -> RunningServer:
        return serve(keys_file=keys_file, log="memory://")

    def choose(marks: str) -> RunningServer:
        return secured() if "secured" in marks.split() else server

    examples = Examples(lambda block: choose(block.info), known=keys)
    try:
        assert examples.run("docs/protocol.md", blocks(protocol)) > 50
    finally:
        examples.close()


def test_every_block_is_executed_or_a_message(protocol: str) -> None:
    """No example can escape by being called something else; those that only show are real messages."""
    kinds = {block.kind for block in blocks(protocol)}
    assert kinds == {"ws", "http", "sse", "json"}
    for block in blocks(protocol):
        if block.info == "json":
            shown = json.loads(block.text)
            known = ClientMessage if shown["type"] in ("subscribe", "publish") else ServerMessage
            message = msgspec.convert(shown, known)
            assert shown.keys() <= {field.encode_name for field in msgspec.structs.fields(message)}


def test_the_filters_hold_as_the_table_says(protocol: str) -> None:
    """Each filter of the table is true, false or fails on the record above it."""
    [block] = [block for block in blocks(protocol) if block.info == "json record"]
    shown = json.loads(block.text)
    headers, payload = json.dumps(shown["headers"]).encode(), json.dumps(shown["payload"]).encode()
    record = Record(shown["topic"], shown["offset"], 0, "an-id", headers, payload)
    table = [
        row for row in rows(section(protocol, "### Filters")) if row[1].startswith(("true", "false", "fails"))
    ]
    assert len(table) > 10
    for cell, holds in table:
        [text] = code_spans(cell)
        if holds.startswith("fails"):
            with pytest.raises(FilterFailed):
                compile_filter(text).matches(record)
        else:
            assert compile_filter(text).matches(record) is (holds == "true"), text


@pytest.mark.parametrize(
    ("wanted", "given"),
    [
        ('{"a": 1}', {"a": 2}),
        ('{"a": 1}', {"a": 1, "b": 2}),
        ('{"a": 1, "b": "*"}', {"a": 1}),
        ('{"a": [1]}', {"a": [1, 2]}),
        ('{"a": "$x", "b": "$x"}', {"a": 1, "b": 2}),
        ('{"a": 1, ...}', {"b": 1}),
    ],
)
def test_an_answer_that_differs_is_noticed(wanted: str, given: object) -> None:
    """The comparison of the examples lets nothing pass that the document does not say."""
    with pytest.raises(Mismatch):
        Values().check(expected_json(wanted), given)


def test_a_failure_names_the_line(server: RunningServer) -> None:
    """Who broke an example is told where it stands."""
    block = Block("http", ["> GET /health", '< 200 {"status": "splendid", ...}'], 17)
    with pytest.raises(AssertionError, match=r"here\.md:18: status is 'ok', not 'splendid'"):
        Examples(lambda _: server).run("here.md", [block])
