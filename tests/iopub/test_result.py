"""The result of a request."""

from __future__ import annotations

import msgspec
import pytest

from himalia.iopub.result import ExecutionError, ExecutionResult
from himalia.jupyter.channels import Channel
from himalia.protocol.models import ExecutionStatus
from tests.jupyter.request_records import KERNEL, REQUEST, TOPIC, status, stream
from tests.jupyter.request_records import message as said


def result_of(**fields: object) -> ExecutionResult:
    fields = {"status": ExecutionStatus.OK} | fields
    return ExecutionResult(request_id=REQUEST, kernel_id=KERNEL, topic=TOPIC, **fields)  # type: ignore[arg-type]


def test_a_result_survives_json() -> None:
    """A result is the same after it was written as JSON and read again."""
    result = result_of(
        status=ExecutionStatus.ERROR,
        execution_count=3,
        code="1/0",
        outputs=[{"output_type": "stream", "name": "stdout", "text": "é"}],
        error=ExecutionError("E", "v", ["t"]),
        queued_us=1,
        counts={"stream": 1},
        offset=4,
        end=9,
    )
    assert msgspec.json.decode(msgspec.json.encode(result), type=ExecutionResult) == result


def test_the_status_is_written_as_its_name() -> None:
    """Programs read ``"status": "ok"``."""
    assert msgspec.json.decode(msgspec.json.encode(result_of()))["status"] == "ok"


@pytest.mark.parametrize("status", list(ExecutionStatus))
def test_every_status_but_running_is_an_end(status: ExecutionStatus) -> None:
    """Only a request that runs may still become something else."""
    assert status.is_final == (status != "running")


def test_timings_are_the_spans_between_the_times() -> None:
    """Waiting ends when the kernel begins; how long it ran is what the kernel's own dates say."""
    timings = result_of(
        queued_us=1_000_000, started_us=1_500_000, finished_us=4_000_000, run_us=2_400_000
    ).timings
    assert (timings.waited_s, timings.ran_s, timings.total_s) == (0.5, 2.4, 3.0)


def test_timings_that_are_not_known_are_none() -> None:
    """What has not happened took no time that could be told; clocks that differ give no negative one."""
    timings = result_of(queued_us=2_000_000, started_us=1_999_000).timings
    assert (timings.waited_s, timings.ran_s, timings.total_s) == (0.0, None, None)


def test_channels_come_with_their_collector() -> None:
    """What goes into the channels comes out of the collector, in order of arrival."""
    channels, collector = ExecutionResult.create_channels()
    messages = [status("busy"), stream("a"), status("idle")]
    for sequence, message in enumerate(messages):
        channel = Channel.STREAM if message.msg_type == "stream" else Channel.STATUS
        channels.deliver(message, channel, sequence)
    channels.reply(said("execute_reply", {"status": "ok"}))
    assert collector.collect(timeout_s=5) == messages
    assert collector.is_complete


def test_each_request_has_channels_of_its_own() -> None:
    """Two requests share nothing."""
    channels, _ = ExecutionResult.create_channels()
    _, other = ExecutionResult.create_channels()
    channels.deliver(stream("a"), Channel.STREAM, 0)
    assert other.in_order() == []
