"""Executes pieces of code on one kernel, one after the other, and follows their output."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack, nullcontext
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from himalia.cli.terminal.kernel_output import KernelRecord
from himalia.cli.terminal.output import print_notice
from himalia.cli.terminal.prompts import Keyboard
from himalia.client.client import Client
from himalia.client.events import Event
from himalia.client.subscription import Subscription
from himalia.errors import HimaliaError
from himalia.protocol.models import Submitted


class OutputDisplay(Protocol):
    """Where the output of code is shown. Called on the event loop."""

    def show(self, record: KernelRecord) -> None: ...
    def finish(self) -> None:
        """Called when the code has ended, for whatever reason."""

    def begin_prompt(self, prompt: str) -> None: ...
    def end_prompt(self, *, is_hidden: bool) -> None:
        """Called when the user has typed a line; if it was hidden, the terminal did not echo its end."""


class ExecutionOutcome(NamedTuple):
    """How a request ended: its status, and the reason."""

    request_id: str
    status: str
    reason: str


class Executor:
    """Sends code to a kernel and follows its topic, over one subscription that resumes by itself.

    ``keyboard`` answers when the code requests input; without one such a request fails.
    """

    def __init__(
        self,
        client: Client,
        kernel_id: str,
        display: OutputDisplay,
        *,
        timeout_s: float | None = None,
        keyboard: Keyboard | None = None,
    ) -> None:
        self._client = client
        self._kernel_id = kernel_id
        self._display = display
        self._timeout_s = timeout_s
        self._keyboard = keyboard
        self._events: Subscription[Any] | None = None
        self._exit_stack = AsyncExitStack()
        self._request_ids: set[str] = set()
        self._answer_task: asyncio.Task[None] | None = None
        self._request_id: str | None = None
        self._has_begun = False
        self.last_request_id: str | None = None
        """The request that is queued or running, else the last one."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._cancel_answer()
        await self._exit_stack.aclose()

    async def execute(self, code: str, *, stop_on_error: bool = True) -> ExecutionOutcome:
        """Execute code and return when it has ended, for whatever reason."""
        self.last_request_id = None
        submitted = await self._client.execute(
            self._kernel_id,
            code,
            wait=False,
            timeout_s=self._timeout_s,
            allow_stdin=self._keyboard is not None,
            stop_on_error=stop_on_error,
        )
        self._request_id = self.last_request_id = submitted.request_id
        self._has_begun = False
        self._request_ids.add(submitted.request_id)
        try:
            return await self._follow(await self._subscribe(submitted), submitted.request_id)
        finally:
            self._request_id = None
            await self._cancel_answer()
            self._display.finish()

    async def interrupt(self) -> None:
        """Interrupt the request if it runs; cancel it if it is queued, so that no other code is interrupted."""
        if self._request_id is None:
            return
        if self._has_begun:
            await self._client.interrupt_kernel(self._kernel_id)
        else:
            await self._client.cancel_execution(self._kernel_id, self._request_id)

    async def _subscribe(self, submitted: Submitted) -> Subscription[Any]:
        if self._events is not None:
            return self._events
        subscription: Subscription[Any] = self._client.subscribe(
            submitted.topic,
            from_=submitted.offset,
            policy="lossless",
            notices=True,
            client_id=f"run-{uuid.uuid4()}",
        )
        self._events = await self._exit_stack.enter_async_context(subscription)
        return subscription

    async def _follow(self, events: Subscription[Any], request_id: str) -> ExecutionOutcome:
        async for item in events:
            if not isinstance(item, Event):
                print_notice(item)
                continue
            record = KernelRecord.of(item)
            if record.parent_id == request_id and record.event == "request_closed":
                return ExecutionOutcome(
                    request_id, str(record.content.get("status")), str(record.content.get("reason") or "")
                )
            self._on_record(record, request_id)
        raise HimaliaError(f"the topic of kernel {self._kernel_id} was deleted while the code ran")

    def _on_record(self, record: KernelRecord, request_id: str) -> None:
        if record.parent_id == request_id:
            # An input request arrives on a socket of its own, and may precede every other message.
            self._has_begun = self._has_begun or record.msg_type in (
                "status",
                "execute_input",
                "input_request",
            )
            if record.msg_type == "input_request" and self._keyboard is not None:
                self._answer_task = asyncio.create_task(self._answer(record, self._keyboard))
        # Late output of an earlier request of ours, as from a thread, is shown; output of other clients is not.
        if record.parent_id in self._request_ids or record.event == "gap":
            self._display.show(record)

    async def _answer(self, record: KernelRecord, keyboard: Keyboard) -> None:
        is_hidden = record.content.get("password") is True
        with keyboard.without_echo() if is_hidden else nullcontext():
            self._display.begin_prompt(str(record.content.get("prompt", "")))
            value = await keyboard.read_line()
        self._display.end_prompt(is_hidden=is_hidden)
        await self._client.answer_input(self._kernel_id, value)

    async def _cancel_answer(self) -> None:
        task, self._answer_task = self._answer_task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
