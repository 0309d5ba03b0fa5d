"""Running pieces of code on one kernel, one after the other, and watching what they say."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import AsyncExitStack, nullcontext
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from himalia.cli.terminal.kernel_output import KernelRecord
from himalia.cli.terminal.output import print_notice
from himalia.cli.terminal.prompts import Terminal
from himalia.client.client import Client
from himalia.client.events import Event
from himalia.client.subscription import Subscription
from himalia.errors import HimaliaError
from himalia.protocol.models import Submitted


class Display(Protocol):
    """Where it is shown."""

    def show(self, record: KernelRecord) -> None: ...
    def ended(self) -> None:
        """The code has ended, however that came."""

    def ask(self, prompt: str) -> None: ...
    def asked(self, *, is_hidden: bool) -> None:
        """A line was typed; if it was hidden, so was the end of the line."""


class Ended(NamedTuple):
    """How a request ended: its status, and why in words."""

    request_id: str
    status: str
    reason: str


class Executor:
    """Gives a kernel code and follows its topic, over one subscription that resumes by itself.

    ``terminal`` is who answers when the code asks for input; without one it may not ask.
    """

    def __init__(
        self,
        client: Client,
        kernel_id: str,
        display: Display,
        *,
        timeout_s: float | None = None,
        terminal: Terminal | None = None,
    ) -> None:
        self._client = client
        self._kernel_id = kernel_id
        self._display = display
        self._timeout_s = timeout_s
        self._terminal = terminal
        self._events: Subscription[Any] | None = None
        self._closing = AsyncExitStack()
        self._mine: set[str] = set()
        self._answering: asyncio.Task[None] | None = None
        self._request_id: str | None = None
        self._has_begun = False
        self.last_request_id: str | None = None
        """The request that waits or runs, or did so last."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stop_answering()
        await self._closing.aclose()

    async def execute(self, code: str, *, stop_on_error: bool = True) -> Ended:
        """Run it to its end, however that comes."""
        self.last_request_id = None
        submitted = await self._client.execute(
            self._kernel_id,
            code,
            wait=False,
            timeout_s=self._timeout_s,
            allow_stdin=self._terminal is not None,
            stop_on_error=stop_on_error,
        )
        self._request_id = self.last_request_id = submitted.request_id
        self._has_begun = False
        self._mine.add(submitted.request_id)
        try:
            return await self._follow(await self._subscribe(submitted), submitted.request_id)
        finally:
            self._request_id = None
            await self._stop_answering()
            self._display.ended()

    async def interrupt(self) -> None:
        """End what runs; what still waits for its turn is withdrawn, so that nobody else's code is interrupted."""
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
        self._events = await self._closing.enter_async_context(subscription)
        return subscription

    async def _follow(self, events: Subscription[Any], request_id: str) -> Ended:
        async for item in events:
            if not isinstance(item, Event):
                print_notice(item)
                continue
            record = KernelRecord.of(item)
            if record.parent_id == request_id and record.event == "request_closed":
                return Ended(
                    request_id, str(record.content.get("status")), str(record.content.get("reason") or "")
                )
            self._take(record, request_id)
        raise HimaliaError(f"the topic of kernel {self._kernel_id} was deleted while the code ran")

    def _take(self, record: KernelRecord, request_id: str) -> None:
        if record.parent_id == request_id:
            # A question comes on a socket of its own, and may be here before anything else.
            self._has_begun = self._has_begun or record.msg_type in (
                "status",
                "execute_input",
                "input_request",
            )
            if record.msg_type == "input_request" and self._terminal is not None:
                self._answering = asyncio.create_task(self._answer(record, self._terminal))
        # What an earlier piece of ours says late, as from a thread, is ours too; what others run is not.
        if record.parent_id in self._mine or record.event == "gap":
            self._display.show(record)

    async def _answer(self, record: KernelRecord, terminal: Terminal) -> None:
        is_hidden = record.content.get("password") is True
        with terminal.without_echo() if is_hidden else nullcontext():
            self._display.ask(str(record.content.get("prompt", "")))
            value = await terminal.read_line()
        self._display.asked(is_hidden=is_hidden)
        await self._client.answer_input(self._kernel_id, value)

    async def _stop_answering(self) -> None:
        answering, self._answering = self._answering, None
        if answering is not None:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
