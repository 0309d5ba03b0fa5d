"""Notebooks: the cells to run, their outputs, and the progress bar over them."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, NamedTuple, Self

from himalia.cli.terminal.screen import Screen, Stream
from himalia.cli.terminal.units import format_duration
from himalia.errors import HimaliaError
from himalia.protocol.models import Execution, KernelSpec, KernelSpecs

RAISES, SKIP = "raises-exception", "skip-execution"
"""Tags of cells, as the rest of Jupyter knows them."""


class Cell(NamedTuple):
    """A cell to run. ``number`` counts the notebook's cells, of all kinds, from 1."""

    number: int
    code: str
    may_fail: bool


class Notebook:
    """A notebook under execution. The outputs of earlier executions are removed at the beginning."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._nbformat = _import_nbformat()
        self._content = self._read()
        for cell in self._code_cells():
            cell["outputs"], cell["execution_count"] = [], None
        self._content.metadata.pop("widgets", None)

    def _read(self) -> Any:
        try:
            return self._nbformat.read(self.path, as_version=4)
        except OSError as error:
            raise HimaliaError(f"{self.path} cannot be read: {error.strerror}") from None
        except Exception as error:  # nbformat raises all kinds, some of them bare
            reason = " ".join(str(error).split())[:200]
            raise HimaliaError(f"{self.path} is not a notebook: {reason}") from None

    def _code_cells(self) -> list[Any]:
        return [cell for cell in self._content.cells if cell["cell_type"] == "code"]

    @property
    def cells(self) -> list[Cell]:
        """The cells to run, in order: those with code that are not tagged ``skip-execution``."""
        found = []
        for number, cell in enumerate(self._content.cells, start=1):
            tags = cell.get("metadata", {}).get("tags", [])
            if cell["cell_type"] == "code" and cell["source"].strip() and SKIP not in tags:
                found.append(Cell(number, cell["source"], RAISES in tags))
        return found

    def record(self, cell: Cell, execution: Execution) -> None:
        """Store the outputs of a cell."""
        target = self._content.cells[cell.number - 1]
        target["execution_count"] = execution.execution_count
        target["outputs"] = [self._nbformat.from_dict(output) for output in execution.outputs]

    def record_widgets(self, metadata: dict[str, Any] | None) -> None:
        """Store the state of the widgets in its outputs: without it a front end cannot draw them."""
        if metadata is not None:
            self._content.metadata["widgets"] = self._nbformat.from_dict(metadata)

    def choose_kernel(self, specs: KernelSpecs) -> tuple[KernelSpec, bool]:
        """Return the kernel spec that the notebook names, and true; else one of the same language, and false."""
        metadata = self._content.metadata
        named = metadata.get("kernelspec", {})
        wanted = named.get("name") or specs.default
        if wanted in specs.kernelspecs:
            return specs.kernelspecs[wanted], True
        language = named.get("language") or metadata.get("language_info", {}).get("name")
        for spec in specs.kernelspecs.values():
            if language and spec.language.lower() == str(language).lower():
                return spec, False
        known = ", ".join(sorted(specs.kernelspecs)) or "none"
        raise HimaliaError(
            f"{self.path} names the kernel {wanted!r}, which the server does not have; it has {known} (see --name)"
        )

    def name_kernel(self, spec: KernelSpec) -> None:
        """Record the kernel spec that it runs on."""
        self._content.metadata["kernelspec"] = {
            "name": spec.name,
            "display_name": spec.display_name,
            "language": spec.language,
        }

    def write(self, path: Path) -> None:
        """Write the notebook, as a whole or not at all."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            temporary.write_text(self._nbformat.writes(self._content) + "\n", encoding="utf-8")
            os.replace(temporary, path)
        except OSError as error:
            raise HimaliaError(f"{path} cannot be written: {error.strerror}") from None
        finally:
            temporary.unlink(missing_ok=True)


def executed_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}.executed.ipynb")


def _import_nbformat() -> ModuleType:
    try:
        import nbformat
    except ImportError:
        raise HimaliaError(
            "notebooks need the package nbformat; install it with: pip install 'himalia[notebooks]'"
        ) from None
    found: ModuleType = nbformat
    return found


WIDTH = 24
REFRESH_S = 1.0


class CellProgress:
    """A progress bar on the status line of a terminal, while it is entered."""

    def __init__(self, screen: Screen, total: int, *, is_shown: bool) -> None:
        self._screen = screen
        self._total = total
        self._done = 0
        self._started_s = time.monotonic()
        self._is_shown = is_shown and screen.is_terminal(Stream.ERR)
        self._refresh_task: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        if self._is_shown:
            self._refresh_task = asyncio.create_task(self._refresh())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._refresh_task is not None:
            self._refresh_task.cancel()
            self._screen.show_status("")

    def advance(self) -> None:
        self._done += 1
        self._show()

    async def _refresh(self) -> None:
        while True:
            self._show()
            await asyncio.sleep(REFRESH_S)

    def _show(self) -> None:
        if self._is_shown:
            filled = WIDTH * self._done // max(self._total, 1)
            bar = self._screen.style("━" * filled, "32", Stream.ERR) + "━" * (WIDTH - filled)
            elapsed = format_duration(time.monotonic() - self._started_s)
            self._screen.show_status(f"{bar} {self._done}/{self._total} cells, {elapsed}")
