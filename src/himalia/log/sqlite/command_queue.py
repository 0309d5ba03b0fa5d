"""The queue of commands between the event loop and the writer thread."""

from __future__ import annotations

from collections.abc import Iterator
from queue import Empty, SimpleQueue

from himalia.log.sqlite.commands import Command, ConfirmClockCommand, StopCommand, WriteCommand


class CommandQueue:
    """``submit`` may be called from any thread, everything else in the writer thread only.

    Commands that store something come out in the order they were submitted; the others are set aside.
    """

    def __init__(self) -> None:
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._confirmations: list[ConfirmClockCommand] = []
        self.is_stopping = False
        """Whether ``StopCommand`` has been reached. It is the last one, so nothing is left behind it."""

    def submit(self, command: Command) -> None:
        self._commands.put(command)

    def next(self, wait_s: float) -> WriteCommand | None:
        """Wait for a command for so long; None if none came, or one that stores nothing."""
        try:
            command = self._commands.get(timeout=wait_s) if wait_s > 0 else self._commands.get_nowait()
        except Empty:
            return None
        return self._dispatch(command)

    def drain(self, first: WriteCommand) -> Iterator[WriteCommand]:
        """Yield ``first`` and the commands queued behind it, without waiting."""
        yield first
        while not self.is_stopping:
            try:
                command = self._dispatch(self._commands.get_nowait())
            except Empty:
                return
            if command is not None:
                yield command

    def pop_confirmations(self) -> list[ConfirmClockCommand]:
        """Return the confirmations of the clock that were set aside."""
        confirmations, self._confirmations = self._confirmations, []
        return confirmations

    def _dispatch(self, command: Command) -> WriteCommand | None:
        if isinstance(command, StopCommand):
            self.is_stopping = True
        elif isinstance(command, ConfirmClockCommand):
            self._confirmations.append(command)
        else:
            return command
        return None
