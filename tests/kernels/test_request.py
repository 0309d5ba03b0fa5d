"""A live request: its state, as the event loop and the IOPub thread apply events to it."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from himalia.jupyter import lifecycle
from himalia.jupyter.channels import Channel
from himalia.jupyter.lifecycle import ExecutionStatus, RequestStage
from himalia.kernels.request import Code, InterruptStage, Request
from tests.jupyter.request_records import display, error, message, reply_message, status, stream


class Changes:
    """The listener of a request, which counts."""

    def __init__(self) -> None:
        self.changed = 0
        self.expired = 0

    def request_changed(self, request: Request) -> None:
        self.changed += 1

    def request_expired(self, request: Request) -> None:
        self.expired += 1


@pytest.fixture
def switching() -> Iterator[None]:
    """Give way to the other thread after every line of the state machine."""

    def trace(frame: FrameType, event: str, argument: object) -> Callable[..., Any] | None:
        if frame.f_code.co_filename != lifecycle.__file__:
            return None
        time.sleep(0)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    threading.settrace(trace)
    yield
    sys.settrace(before)
    threading.settrace(None)


def sent(request: Request) -> None:
    said = message("execute_request", {"code": request.code.code}, parent_id="", msg_id=request.id)
    request.apply_shell(said)


async def test_output_makes_no_state() -> None:
    """However much a cell prints, its state is the same object: only what can change it is decoded."""
    request = Request(Code(code="1"), Changes())
    before = request.state
    for _ in range(100):
        request.deliver(stream("x", received_us=7), Channel.STREAM, 0)
        request.deliver(display({"text/plain": "1"}), Channel.DISPLAY, 0)
    assert request.state is before
    request.deliver(stream("x", received_us=9), Channel.STREAM, 0)
    assert request.last_heard_us == 9


async def test_no_event_of_two_threads_is_lost(switching: None) -> None:
    """The loop applies the request and its reply while the IOPub thread applies the rest: all of them count."""
    published = [
        (status("busy"), Channel.STATUS),
        (message("execute_input", {"code": "1", "execution_count": 3}), Channel.EXECUTION),
        (error(), Channel.EXECUTION),
        (status("idle"), Channel.STATUS),
    ]
    for _ in range(50):
        request = Request(Code(code="1"), Changes())
        start = threading.Barrier(2)

        def listen(request: Request = request, start: threading.Barrier = start) -> None:
            start.wait()
            for said, channel in published:
                request.deliver(said, channel, 0)

        thread = threading.Thread(target=listen)
        thread.start()
        start.wait()
        sent(request)
        request.apply_shell(reply_message({"status": "error", "execution_count": 3}))
        thread.join()
        state = request.state
        assert state.stage is RequestStage.DONE
        assert None not in (state.sent_us, state.started_us)
        assert (state.has_failed, state.outcome, state.execution_count) == (True, "error", 3)


async def test_the_listener_is_called_on_the_loop() -> None:
    """The IOPub thread reports idle and the drop by the broker, and nothing else of a request that is wanted."""
    listener = Changes()
    request = Request(Code(code="1"), listener)
    sent(request)
    for said in (status("busy"), status("idle")):
        await asyncio.to_thread(request.deliver, said, Channel.STATUS, 0)
    await asyncio.to_thread(request.expire)
    await asyncio.sleep(0)
    assert (listener.changed, listener.expired) == (1, 1)


@pytest.mark.parametrize(("silent", "changed"), [(True, [1, 2]), (False, [0, 1])])
async def test_the_start_of_unwanted_code_is_reported(silent: bool, changed: list[int]) -> None:
    """An interrupt waits for the code to run: the kernel repeats it, or is busy with it if it is silent."""
    listener = Changes()
    request = Request(Code(code="1", silent=silent), listener)
    sent(request)
    request.interrupt = InterruptStage.REQUESTED
    found = []
    request.deliver(status("busy"), Channel.STATUS, 0)
    await asyncio.sleep(0)
    found.append(listener.changed)
    request.deliver(message("execute_input", {"code": "1"}), Channel.EXECUTION, 0)
    await asyncio.sleep(0)
    found.append(listener.changed)
    assert found == changed


async def test_it_follows_its_kernel_after_the_close() -> None:
    """A request that was closed early keeps the state of its close, and is done when its kernel is."""
    request = Request(Code(code="1"), Changes())
    sent(request)
    closed = request.close(ExecutionStatus.TIMEOUT, "too long")
    request.deliver(status("idle"), Channel.STATUS, 0)
    request.apply_shell(reply_message({"status": "error"}))
    assert (request.closed_state, request.status) == (closed, "timeout")
    assert request.state.is_done
