"""The fold of a request's messages into the outputs of a notebook."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import msgspec
import nbformat
import pytest
from hypothesis import given
from hypothesis import strategies as st

from himalia.jupyter.outputs import OutputBuilder
from himalia.jupyter.wire import KernelMessage
from tests.jupyter.request_records import clear, display, error, message, result, status, stream, update


def folded(messages: Iterable[KernelMessage], **options: Any) -> OutputBuilder:
    fold = OutputBuilder(**options)
    for said in messages:
        fold.add(said)
    return fold


def outputs(*messages: KernelMessage, **options: Any) -> list[dict[str, Any]]:
    """The outputs, which are those of a valid notebook."""
    found = folded(messages, **options).outputs
    check_in_notebook(found)
    return found


def check_in_notebook(found: list[dict[str, Any]]) -> None:
    cell = {
        "cell_type": "code",
        "id": "c",
        "execution_count": None,
        "metadata": {},
        "source": "",
        "outputs": found,
    }
    nbformat.validate({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [cell]})


def text(found: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(one["name"], one["text"]) for one in found]


class TestStreams:
    def test_adjacent_text_of_one_stream_is_one_output(self) -> None:
        """Text of one stream runs together; another stream, or any other output, begins a new one."""
        found = outputs(stream("a"), stream("b"), stream("e", "stderr"), stream("c"), stream("d"))
        assert text(found) == [("stdout", "ab"), ("stderr", "e"), ("stdout", "cd")]
        found = outputs(stream("a"), display({"text/plain": "x"}), stream("b"))
        assert [one["output_type"] for one in found] == ["stream", "display_data", "stream"]

    def test_what_shows_nothing_does_not_part_a_stream(self) -> None:
        """Status, comms, inputs, empty text and unknown types leave no trace."""
        silent = [status("busy"), message("comm_msg", {}), message("execute_input", {}), stream("", "stderr")]
        assert text(outputs(stream("a"), *silent, message("nobody_knows", {}), stream("b"))) == [
            ("stdout", "ab")
        ]

    def test_carriage_returns_and_escapes_stay(self) -> None:
        """A progress bar's text is kept as it was printed."""
        assert outputs(stream("1%\r"), stream("2%\x1b[0m\b"))[0]["text"] == "1%\r2%\x1b[0m\b"

    @given(st.text(), st.data())
    def test_how_text_was_cut_into_messages_does_not_matter(self, printed: str, data: st.DataObject) -> None:
        """Any chunking of the same text, within or beyond the limit, folds to the same output."""
        cuts = sorted(data.draw(st.lists(st.integers(0, len(printed)), max_size=5)))
        limit = data.draw(st.sampled_from([200, 203, 210, 1000]))
        chunks = [printed[i:j] for i, j in zip([0, *cuts], [*cuts, len(printed)], strict=True)]
        whole = folded([stream(printed)], bytes_max=limit)
        parts = folded([stream(chunk) for chunk in chunks], bytes_max=limit)
        assert parts.outputs == whole.outputs
        assert parts.truncated == whole.truncated

    def test_asking_in_between_changes_nothing(self) -> None:
        """The outputs may be looked at at any time, and what was given stays as it was."""
        fold = folded([stream("a")])
        early = fold.outputs
        fold.add(stream("b"))
        assert text(early) == [("stdout", "a")]
        assert text(fold.outputs) == [("stdout", "ab")]

    def test_a_hundred_thousand_messages_take_time_in_proportion(self) -> None:
        """Ten times the messages take about ten times as long, not a hundred times."""

        def seconds(count: int) -> float:
            said = [stream("line of some length, as programs print them\n")] * count
            began = time.process_time()
            fold = folded(said)
            assert len(fold.outputs[0]["text"]) == 44 * count
            return time.process_time() - began

        few = min(seconds(10_000) for _ in range(3))
        assert seconds(100_000) < 40 * few


class TestDisplays:
    def test_rich_output_is_kept_by_type(self) -> None:
        """A display has data and metadata; a result also its count; what is transient is not kept."""
        found = outputs(
            display({"text/plain": "x", "image/png": "aGk="}, "d"), result({"text/plain": "2"}, 7)
        )
        assert found == [
            {
                "output_type": "display_data",
                "data": {"text/plain": "x", "image/png": "aGk="},
                "metadata": {},
            },
            {
                "output_type": "execute_result",
                "execution_count": 7,
                "data": {"text/plain": "2"},
                "metadata": {},
            },
        ]

    def test_an_update_changes_every_output_with_that_id(self) -> None:
        """Displays and results with the id get the new data and metadata, where they stand."""
        shown = message(
            "update_display_data",
            {"data": {"text/plain": "new"}, "metadata": {"a": 1}, "transient": {"display_id": "d"}},
        )
        found = outputs(
            display({"text/plain": "1"}, "d"),
            display({"text/plain": "2"}, "other"),
            display({"text/plain": "3"}, "d", "execute_result"),
            shown,
        )
        assert [one["data"]["text/plain"] for one in found] == ["new", "2", "new"]
        assert [one["metadata"] for one in found] == [{"a": 1}, {}, {"a": 1}]
        assert [one["output_type"] for one in found] == ["display_data", "display_data", "execute_result"]

    def test_an_update_of_nothing_shown_here_is_nothing(self) -> None:
        """A display of another request, or one that was cleared, is not brought to life."""
        assert outputs(update({"text/plain": "x"}, "d")) == []
        shown = display({"text/plain": "x"}, "d")
        assert outputs(shown, clear(wait=False), update({"text/plain": "y"}, "d")) == []

    def test_what_was_given_out_does_not_change_with_an_update(self) -> None:
        """Outputs that a caller holds are the caller's."""
        fold = folded([display({"text/plain": "old"}, "d")])
        early = fold.outputs
        fold.add(update({"text/plain": "new"}, "d"))
        assert early[0]["data"] == {"text/plain": "old"}
        assert fold.outputs[0]["data"] == {"text/plain": "new"}

    @pytest.mark.parametrize(
        ("kind", "value", "kept"),
        [
            ("application/json", {"a": [1]}, {"a": [1]}),
            ("application/vnd.vega.v5+json", {"a": 1}, {"a": 1}),
            ("text/plain", ["a\n", "b"], ["a\n", "b"]),
            ("text/plain", {"a": 1}, '{"a":1}'),
            ("text/html", None, "null"),
            ("text/html", [1], "[1]"),
        ],
    )
    def test_data_is_always_valid_in_a_notebook(self, kind: str, value: Any, kept: Any) -> None:
        """JSON types hold anything, others text: what is not text is written as JSON."""
        assert outputs(display({kind: value}))[0]["data"] == {kind: kept}

    def test_what_may_be_absent_may_be_null(self) -> None:
        """Metadata, transient and count may be null or missing."""
        content = {"data": {"text/plain": "x"}, "metadata": None, "transient": None, "execution_count": None}
        found = outputs(
            message("execute_result", content), message("display_data", {"data": {}}), result({}, -1)
        )
        assert [one["metadata"] for one in found] == [{}, {}, {}]
        assert [one.get("execution_count") for one in found] == [None, None, None]


class TestErrors:
    def test_an_error_is_an_output(self) -> None:
        """An error has its name, its value and its traceback."""
        assert outputs(error()) == [
            {
                "output_type": "error",
                "ename": "ValueError",
                "evalue": "no",
                "traceback": ["line 1", "line 2"],
            }
        ]

    def test_a_sparse_error_is_an_error(self) -> None:
        """Value and traceback may be missing."""
        assert outputs(message("error", {"ename": "E"}))[0]["traceback"] == []


class TestClearing:
    def test_at_once(self) -> None:
        """Without ``wait`` the outputs are gone at once."""
        assert outputs(stream("a"), error(), clear(wait=False)) == []
        assert text(outputs(stream("a"), clear(wait=False), stream("b"))) == [("stdout", "b")]

    def test_waiting(self) -> None:
        """With ``wait`` the outputs stay until the next one comes, and stay if none does."""
        assert text(outputs(stream("a"), clear(wait=True))) == [("stdout", "a")]
        for following in (stream("b"), display({}), result({}), error()):
            assert len(outputs(stream("a"), stream("e", "stderr"), clear(wait=True), following)) == 1

    def test_what_shows_nothing_does_not_end_the_wait(self) -> None:
        """Neither a status nor an update is the next output."""
        shown = display({"text/plain": "1"}, "d")
        found = outputs(shown, clear(wait=True), status("idle"), update({"text/plain": "2"}, "d"))
        assert found[0]["data"] == {"text/plain": "2"}

    def test_at_once_ends_the_wait(self) -> None:
        """A clearing that was waiting does not come again after one at once."""
        found = outputs(stream("a"), clear(wait=True), clear(wait=False), stream("b"), stream("c"))
        assert text(found) == [("stdout", "bc")]


MALFORMED = [
    stream(1),
    stream(None),
    stream("a", 5),
    stream(["a"]),
    message("stream", b"[]"),
    message("stream", b""),
    message("stream", b"not json"),
    message("stream", b'{"name":"stdout","text":"\xff"}'),
    message("stream", {}),
    message("display_data", {"data": "text"}),
    message("display_data", {"data": None}),
    message("display_data", b"[" * 100_000),
    message("display_data", b'{"data":{"text/plain":' + b"[" * 100_000),
    message("execute_result", {"data": {}, "execution_count": "one"}),
    message("update_display_data", {"data": {}}),
    message("update_display_data", {"data": {}, "transient": {"display_id": []}}),
    message("error", {}),
    message("error", {"ename": "E", "traceback": "text"}),
    message("clear_output", {"wait": "yes"}),
    message("clear_output", b"true"),
]


class TestMalformedContent:
    @pytest.mark.parametrize("said", MALFORMED, ids=lambda said: f"{said.msg_type}-{said.content[:30]!r}")
    def test_is_skipped_and_counted(self, said: KernelMessage) -> None:
        """Content that is not what its type says changes nothing and is counted; nothing is raised."""
        fold = folded([stream("a"), said, stream("b")])
        assert text(fold.outputs) == [("stdout", "ab")]
        assert fold.malformed == 1

    @given(
        st.lists(
            st.builds(
                message,
                st.sampled_from(["stream", "display_data", "error", "clear_output", "update_display_data"]),
                st.binary(max_size=20)
                | st.recursive(
                    st.none() | st.booleans() | st.text(max_size=3),
                    lambda inner: st.dictionaries(
                        st.sampled_from(
                            ["name", "text", "data", "transient", "display_id", "ename", "wait", "text/plain"]
                        ),
                        inner,
                        max_size=4,
                    ),
                    max_leaves=6,
                ),
            ),
            max_size=6,
        )
    )
    def test_whatever_comes_the_outputs_are_valid(self, said: list[KernelMessage]) -> None:
        """No sequence of messages raises, or gives outputs that a notebook may not hold."""
        fold = folded(said, bytes_max=500)
        check_in_notebook(fold.outputs)
        msgspec.json.encode(fold.outputs)


class TestTheLimit:
    def test_text_is_cut_with_a_marker(self) -> None:
        """Text beyond the limit is cut between two characters, and a marker says so, once."""
        fold = folded([stream("é" * 50)] * 3 + [stream("more", "stderr")], bytes_max=351)
        (only,) = fold.outputs
        kept, marker, _ = only["text"].split("\n")
        assert kept == "é" * 75
        assert "351 bytes" in marker
        assert fold.truncated

    def test_within_the_limit_nothing_is_cut(self) -> None:
        """Exactly as much as the limit allows is kept whole."""
        fold = folded([stream("x" * 100)], bytes_max=300)
        assert fold.outputs[0]["text"] == "x" * 100
        assert not fold.truncated

    def test_a_display_that_does_not_fit_is_replaced(self) -> None:
        """The marker stands where a large display would; smaller output still has its place."""
        found = folded([display({"image/png": "x" * 5000}), display({"text/plain": "small"})], bytes_max=1000)
        assert "cut here" in found.outputs[0]["data"]["text/plain"]
        assert found.outputs[1]["data"] == {"text/plain": "small"}
        assert found.truncated

    def test_an_update_counts_instead_of_what_it_replaces(self) -> None:
        """A display that is updated a thousand times takes no more room than its last update."""
        updates = [update({"text/plain": "x" * 500}, "d") for _ in range(1000)]
        fold = folded([display({"text/plain": "x"}, "d"), *updates], bytes_max=1000)
        assert fold.outputs[0]["data"] == {"text/plain": "x" * 500}
        assert not fold.truncated

    def test_a_display_goes_on_when_the_text_is_full(self) -> None:
        """A progress bar still moves after the text beside it was cut."""
        fold = folded([display({"text/plain": "1"}, "d"), stream("x" * 5000)], bytes_max=1000)
        fold.add(update({"text/plain": "2"}, "d"))
        assert fold.outputs[0]["data"] == {"text/plain": "2"}

    @pytest.mark.parametrize(
        "said", [stream("x" * 50), display({}), error(), update({}, "d"), stream("y", "stderr")]
    )
    def test_memory_is_bounded_whatever_comes(self, said: KernelMessage) -> None:
        """However many messages come, as many bytes as the limit says, and one error, are kept."""
        fold = folded([said, stream("-", "stderr"), stream("-")] * 5000, bytes_max=10_000)
        assert len(fold.outputs) < 100
        assert len(msgspec.json.encode(fold.outputs)) < 20_000

    def test_clearing_makes_room(self) -> None:
        """After a clearing nothing is cut any more, and nothing is said to be."""
        fold = folded([stream("x" * 5000), clear(wait=False), stream("after")], bytes_max=1000)
        assert text(fold.outputs) == [("stdout", "after")]
        assert not fold.truncated

    def test_the_error_is_kept_beyond_the_limit(self) -> None:
        """Why a cell failed is told however much it printed before; a long traceback keeps its end."""
        traceback = [f"{n}" * 1000 for n in range(100, 400)] + ["the end"]
        fold = folded([stream("x" * 5000), error("E", "v", traceback), error()], bytes_max=1000)
        last = fold.outputs[-1]
        assert len(fold.outputs) == 2
        assert (last["ename"], last["evalue"], last["traceback"][-1]) == ("E", "v", "the end")
        assert sum(map(len, last["traceback"])) < 64 << 10
        assert fold.truncated


def test_large_json_stays_as_it_is_where_it_is_only_encoded_again() -> None:
    """Encoded it is the same, and what is small, or text, is decoded all the same."""
    large, small = {"n": list(range(20_000))}, {"n": [1]}
    shown = display({"application/json": large, "application/vnd.x+json": small, "text/plain": ["a", "b"]})
    plain, [kept] = outputs(shown), folded([shown], keeps_json=True).outputs
    assert isinstance(kept["data"]["application/json"], msgspec.Raw)
    assert kept["data"]["application/vnd.x+json"] == small and kept["data"]["text/plain"] == ["a", "b"]
    assert msgspec.json.decode(msgspec.json.encode([kept])) == plain


def test_what_should_be_text_and_is_not_becomes_its_json() -> None:
    """A notebook takes text or lines of text there, however large it is."""
    for options in ({}, {"keeps_json": True}):
        [shown] = folded([display({"text/plain": {"n": [[]] * 20_000}})], **options).outputs
        assert isinstance(shown["data"]["text/plain"], str)
        assert msgspec.json.decode(shown["data"]["text/plain"]) == {"n": [[]] * 20_000}
