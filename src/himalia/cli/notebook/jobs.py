"""The work of ``himalia run``: code or the cells of a notebook, on a new kernel or a given one."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol

import msgspec

from himalia.cli.notebook.executor import ExecutionOutcome, Executor
from himalia.cli.notebook.notebooks import Cell, CellProgress, Notebook, executed_path
from himalia.cli.options import connect, find_kernel
from himalia.cli.process.signals import Interrupts
from himalia.cli.terminal.kernel_output import COMM_TYPES, Images, KernelRecord, Renderer
from himalia.cli.terminal.output import print_error, print_json, print_warning
from himalia.cli.terminal.prompts import Keyboard
from himalia.cli.terminal.screen import Screen, Stream
from himalia.cli.terminal.widgets import Widgets
from himalia.client.client import Client
from himalia.errors import HimaliaError, KernelNotFound, KernelUnavailable
from himalia.protocol.models import Execution, Kernel

FAILED, INTERRUPTED = 1, 130


class RunOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of code and notebooks alike, as the flags of the command have them."""

    kernel: str | None
    name: str | None
    timeout_s: float | None
    images: Path | None
    keep: bool
    json: bool
    url: str | None
    token: str | None
    can_prompt: bool
    """Whether there is a terminal at which the user can answer ``input()``."""


class Job(Protocol):
    async def run(self) -> int:
        """Run to the end and return the exit code."""


class CodeJob:
    """Some code, run as one piece."""

    def __init__(self, options: RunOptions, code: str) -> None:
        self._options = options
        self._code = code

    async def run(self) -> int:
        options = self._options
        with Interrupts() as interrupts, Keyboard() as keyboard:
            async with connect(options.url, options.token) as client, _kernel(client, options) as kernel_id:
                display = _TerminalDisplay(options)
                async with _executor(client, kernel_id, display, options, keyboard) as executor:
                    with interrupts.redirect_to(executor.interrupt):
                        outcome = await executor.execute(self._code)
                    if options.json:
                        print_json(await client.execution(kernel_id, outcome.request_id))
        return _exit_code(outcome, interrupts)


class NotebookJob:
    """The cells of a notebook, one after the other, until one fails."""

    def __init__(self, options: RunOptions, path: Path, output: Path | None, *, allow_errors: bool) -> None:
        self._options = options
        self._notebook = Notebook(path)
        self._output = output or executed_path(path)
        self._allow_errors = allow_errors

    async def run(self) -> int:
        options = self._options
        with Interrupts() as interrupts, Keyboard() as keyboard:
            async with connect(options.url, options.token) as client:
                name = await self._choose_kernel(client)
                folder = self._notebook.path.absolute().parent
                async with _kernel(client, options, name, folder) as kernel_id:
                    display = _TerminalDisplay(options)
                    async with _executor(client, kernel_id, display, options, keyboard) as executor:
                        return await self._run_cells(client, kernel_id, executor, display, interrupts)

    async def _choose_kernel(self, client: Client) -> str | None:
        if self._options.kernel is not None or self._options.name is not None:
            return self._options.name
        spec, is_exact = self._notebook.choose_kernel(await client.kernelspecs())
        if not is_exact:
            print_warning(f"the server does not have the kernel that the notebook names; using {spec.name}")
        self._notebook.name_kernel(spec)
        return spec.name

    async def _run_cells(
        self,
        client: Client,
        kernel_id: str,
        executor: Executor,
        display: _TerminalDisplay,
        interrupts: Interrupts,
    ) -> int:
        cells = self._notebook.cells
        code = done = 0
        with display.progress(len(cells)) as progress, self._write_at_end(display):
            for cell in cells:
                outcome = await self._run_cell(client, kernel_id, executor, cell, interrupts)
                code = (
                    0
                    if outcome.status == "ok" or self._may_fail(cell, outcome)
                    else _exit_code(outcome, interrupts)
                )
                if code:
                    break
                done += 1
                progress.advance()
        if self._options.json:
            print_json(
                {"notebook": str(self._output), "cells": len(cells), "executed": done, "failed": bool(code)}
            )
        elif code:
            print_error(f"cell {cell.number} of {self._notebook.path} failed; the {done} before it succeeded")
        return code

    async def _run_cell(
        self, client: Client, kernel_id: str, executor: Executor, cell: Cell, interrupts: Interrupts
    ) -> ExecutionOutcome:
        may_fail = self._allow_errors or cell.may_fail
        try:
            with interrupts.redirect_to(executor.interrupt):
                return await executor.execute(cell.code, stop_on_error=not may_fail)
        finally:
            # Also after an interrupt: the output so far belongs into the notebook.
            if executor.last_request_id is not None:
                await self._record(client, kernel_id, cell, executor.last_request_id)

    async def _record(self, client: Client, kernel_id: str, cell: Cell, request_id: str) -> None:
        execution = await client.execution(kernel_id, request_id)
        self._notebook.record(cell, execution)
        if self._options.json:
            print_json(_with_cell(cell, execution))

    def _may_fail(self, cell: Cell, outcome: ExecutionOutcome) -> bool:
        return outcome.status == "error" and (self._allow_errors or cell.may_fail)

    @contextmanager
    def _write_at_end(self, display: _TerminalDisplay) -> Iterator[None]:
        """Write the notebook at the end of this block, also after an error."""
        try:
            yield
        finally:
            self._notebook.record_widgets(display.widgets.as_metadata())
            self._notebook.write(self._output)
            if display.widgets.dropped:
                print_warning(f"the state of {display.widgets.dropped} widgets was too large to be stored")
            display.note(f"wrote {self._output}")


class _TerminalDisplay:
    """Shows output in the terminal; with --json it shows nothing and only keeps the state of widgets."""

    def __init__(self, options: RunOptions) -> None:
        self._screen = Screen(sys.stdout, sys.stderr)
        self.widgets = Widgets()
        self._renderer = (
            None if options.json else Renderer(self._screen, Images(options.images), self.widgets)
        )

    def show(self, record: KernelRecord) -> None:
        if self._renderer is not None:
            self._renderer.show(record)
        elif record.msg_type in COMM_TYPES:
            self.widgets.apply(record.msg_type, record.content, record.buffers)

    def finish(self) -> None:
        if self._renderer is not None:
            self._renderer.freeze_widgets()

    def begin_prompt(self, prompt: str) -> None:
        if self._renderer is not None:
            self._renderer.set_paused(paused=True)
        self._screen.write(prompt)

    def end_prompt(self, *, is_hidden: bool) -> None:
        if is_hidden:
            self._screen.begin_line()
        else:
            self._screen.advance_line()
        if self._renderer is not None:
            self._renderer.set_paused(paused=False)

    def note(self, text: str) -> None:
        if self._renderer is not None:
            self._screen.write_own(text, stream=Stream.ERR)

    @contextmanager
    def progress(self, total: int) -> Iterator[CellProgress]:
        with CellProgress(self._screen, total, is_shown=self._renderer is not None) as progress:
            yield progress


def _with_cell(cell: Cell, execution: Execution) -> dict[str, Any]:
    return {"cell": cell.number, **msgspec.structs.asdict(execution)}


def _executor(
    client: Client, kernel_id: str, display: _TerminalDisplay, options: RunOptions, keyboard: Keyboard
) -> Executor:
    return Executor(
        client,
        kernel_id,
        display,
        timeout_s=options.timeout_s,
        keyboard=keyboard if options.can_prompt else None,
    )


def _exit_code(outcome: ExecutionOutcome, interrupts: Interrupts) -> int:
    """Return the exit code; print an error if the output does not show what went wrong."""
    if outcome.status == "ok":
        return 0
    if outcome.status != "error":
        reason = f": {outcome.reason}" if outcome.reason else ""
        print_error(f"the code ended with status {outcome.status}{reason}")
    return INTERRUPTED if interrupts.count else FAILED


@asynccontextmanager
async def _kernel(
    client: Client, options: RunOptions, name: str | None = None, folder: Path | None = None
) -> AsyncIterator[str]:
    """Yield the id of the kernel to use: the named one, or a new one, which is stopped at the end unless it is kept."""
    if options.kernel is not None:
        yield await find_kernel(client, options.kernel)
        return
    kernel = await _start(client, name or options.name, folder or Path.cwd())
    try:
        yield kernel.id
    finally:
        if options.keep:
            print_warning(f"kernel {kernel.id} keeps running; 'himalia kernel stop {kernel.id}' stops it")
        else:
            await asyncio.shield(_stop(client, kernel.id))


async def _start(client: Client, name: str | None, folder: Path) -> Kernel:
    starting = asyncio.ensure_future(client.start_kernel(name, path=folder))
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        # The user interrupted; the kernel starts all the same, and has to be stopped.
        await _stop(client, (await starting).id)
        raise


async def _stop(client: Client, kernel_id: str) -> None:
    try:
        await client.stop_kernel(kernel_id)
    except (KernelNotFound, KernelUnavailable):
        pass  # it has died
    except HimaliaError as error:
        print_warning(f"kernel {kernel_id} could not be stopped: {error.message}")
