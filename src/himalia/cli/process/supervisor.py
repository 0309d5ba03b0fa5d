"""What ``himalia up`` runs: the server, the pipeline and the demo, each a process, from start to stop."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

import msgspec

from himalia.cli.process.children import Child, Ended, Said
from himalia.cli.settings_options import flag_of
from himalia.cli.terminal.output import abandon_stdout, print_error, print_warning, write_line
from himalia.errors import InternalError
from himalia.local_server import RunningServer, default_warehouse_path, find_running_servers, page_url
from himalia.settings import Settings

SIGNALS = (signal.SIGINT, signal.SIGTERM)
DEMO_ENDS_WITHIN_S = 10.0
PIPELINE_ENDS_WITHIN_S = 20.0
"""It ends after its batch, or gives that up after five seconds; Spark takes a moment to stop."""
SERVER_ENDS_SPARE_S = 10.0
"""Beyond twice its shutdown_s, which is what the server itself takes at most."""

TRY_PUBLISHING = """publish orders '{"sku": "A-17", "quantity": 2}' --create"""
TRY_RUNNING = """run 'print("hello"); 6 * 7'"""
TRY_ASKING = 'pipeline sql "select status, count(*) as n from executions group by status"'


class Asked(msgspec.Struct, frozen=True):
    """Somebody wants us to stop."""

    number: int


class Ensemble:
    """One server, and beside it a pipeline and a demo. What happens to them comes as news, one after the other.

    ``given`` are flags for the server. ``every`` is how often the pipeline looks for more; without it there is none.
    """

    def __init__(
        self, settings: Settings, given: Mapping[str, Any], *, every: str | None, demo: bool
    ) -> None:
        self._settings = settings
        self._given = given
        self._every = every
        self._has_demo = demo
        self._news: SimpleQueue[Any] = SimpleQueue()
        self._server: Child
        self._pipeline: Child | None = None
        self._demo: Child | None = None
        self._is_ready = False
        self._is_filled = False
        self._is_hurried = False

    def run(self) -> int:
        """Run until a signal comes, or the server ends; then end all of it, in order. Returns the exit code."""
        with self._signals():
            self._server = self._start_server()
            ending: Asked | Ended | None = None
            try:
                ending = self._follow()
            finally:
                self._stop(ending.number if isinstance(ending, Asked) else signal.SIGTERM)
        if isinstance(ending, Asked):
            return 0
        if not self._is_ready:
            # It has said itself why it cannot start.
            return self._server.exit_code or 1
        print_error(f"the server has ended by itself ({_code(self._server)})")
        return 1

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Signals are news like any other. The queue takes them in the middle of anything.

        But for SIGHUP where it is to be ignored, which is what ``nohup`` asks for.
        """

        def ask(number: int, frame: FrameType | None) -> None:
            self._news.put(Asked(number))

        stays = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        numbers = SIGNALS if stays else (*SIGNALS, signal.SIGHUP)
        before = {number: signal.signal(number, ask) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # While it runs

    def _follow(self) -> Asked | Ended:
        """Take the news; returns that which ends the whole."""
        while True:
            match news := self._news.get():
                case Asked():
                    return news
                case Ended(child) if child is self._server:
                    return news
                case Ended(child):
                    self._tell_end(child)
                case Said(child, line):
                    self._hear(child, line)

    def _hear(self, child: Child, line: str) -> None:
        if child is self._server:
            # All that it says on stdout is that it is ready; the rest is on stderr, which is ours.
            self._is_ready = True
            self._begin(self._running(child.pid))
        elif line.startswith("warning: "):
            print_warning(line.removeprefix("warning: "))
        elif child is self._pipeline and line.startswith("batch ") and not self._is_filled:
            self._is_filled = True
            _say("The pipeline has filled its tables; Executions and Pipeline on the page show them.")

    def _running(self, pid: int) -> RunningServer:
        for server in find_running_servers():
            if server.pid == pid:
                return server
        raise InternalError("the server runs, but its runtime file is gone; stop it, and start it again")

    def _begin(self, server: RunningServer) -> None:
        """The server is ready: say so, and start what needs it."""
        _say(f"Himalia is ready at {page_url(server.url, server.token)} (Ctrl-C stops it)")
        # They find the token by the address, also after it was rotated; a key of the keys file is in our environment.
        known = {"HIMALIA_URL": server.url}
        if self._every is not None:
            self._pipeline = self._start_pipeline(known)
        if self._has_demo:
            self._demo = Child("himalia.demo", news=self._news, env=known)
        for line in self._greeting():
            _say(line)

    def _tell_end(self, child: Child) -> None:
        """Something beside the server has ended by itself. That is told, and the server goes on."""
        words = child.last_words or f"it did not say why ({_code(child)})"
        if child is self._pipeline:
            again = f"'{self._himalia('pipeline run --every ' + str(self._every))}' starts it again"
            print_warning(f"the pipeline does not run: {words}. The server and its page go on; {again}")
        elif child.exit_code:
            print_warning(f"the demo has ended: {words}. The server and its page go on")

    # Starting

    def _start_server(self) -> Child:
        settings = self._settings
        flags = [_flag(name, value) for name, value in self._given.items()]
        flags += [f"--log={settings.log}", f"--warehouse={settings.warehouse}", "--no-kernels-stay"]
        if "HIMALIA_LOG_LEVEL" not in os.environ:
            flags.append("--log-level=warning")
        return Child("himalia.cli", "serve", *flags, news=self._news, heard=("stdout",))

    def _start_pipeline(self, known: Mapping[str, str]) -> Child:
        flags = [f"--every={self._every}", f"--warehouse={self._settings.warehouse}"]
        return Child("himalia.cli", "pipeline", "run", *flags, news=self._news, env=known)

    def _greeting(self) -> Iterator[str]:
        if self._pipeline is not None:
            yield "The pipeline is starting; half a minute, and what ran is in its tables."
        yield "Open that address, or try in another terminal:"
        for command in self._to_try():
            yield "  " + self._himalia(command)

    def _to_try(self) -> Iterator[str]:
        yield "tail demo.orders --last 3" if self._has_demo else TRY_PUBLISHING
        yield TRY_RUNNING
        if self._pipeline is not None:
            yield TRY_ASKING

    def _himalia(self, command: str) -> str:
        """A command as one has to type it here."""
        program = "himalia" if shutil.which("himalia") else _program()
        warehouse = self._settings.warehouse
        is_elsewhere = command.startswith("pipeline ") and warehouse != default_warehouse_path()
        return f"{program} {command}" + (
            f" --warehouse {shlex.quote(str(warehouse))}" if is_elsewhere else ""
        )

    # Stopping

    def _stop(self, number: int) -> None:
        """End the demo, the pipeline and then the server, which ends its kernels. Nothing is left."""
        beside = [(self._demo, DEMO_ENDS_WITHIN_S), (self._pipeline, PIPELINE_ENDS_WITHIN_S)]
        if any(child is not None and not child.has_ended for child, _ in beside):
            _say("Stopping, in order; Ctrl-C again does not wait.")
        for child, within_s in beside:
            if child is not None:
                self._end(child, signal.SIGTERM, within_s)
        # A person's Ctrl-C is told to clients as such: there is nothing to come back to. One that is still starting
        # has no clients, and would take it for a failure.
        told = signal.SIGINT if number == signal.SIGINT and self._is_ready else signal.SIGTERM
        self._end(self._server, told, 2 * self._settings.shutdown_s + SERVER_ENDS_SPARE_S, is_patient=True)

    def _end(self, child: Child, number: int, within_s: float, *, is_patient: bool = False) -> None:
        """Ask a child to end, wait for it and, when that takes too long or somebody is in a hurry, end it."""
        child.signal(number)
        deadline = time.monotonic() + within_s
        while not child.has_ended:
            is_overdue = time.monotonic() > deadline
            if is_overdue or (self._is_hurried and not is_patient):
                child.kill()
                deadline = time.monotonic() + within_s
            self._wait_for_news(deadline)

    def _wait_for_news(self, deadline: float) -> None:
        try:
            news = self._news.get(timeout=max(deadline - time.monotonic(), 0))
        except Empty:
            return
        # Not SIGTERM: where several programs pass it on, it comes several times.
        if news == Asked(signal.SIGINT):
            self._is_hurried = True


def _say(line: str) -> None:
    try:
        write_line(line)
    except OSError:  # nobody reads our stdout, which is no reason to end
        abandon_stdout()


def _flag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return flag_of(name) if value else flag_of(f"no_{name}")
    return f"{flag_of(name)}={value}"


def _code(child: Child) -> str:
    return f"exit code {child.exit_code}"


def _program() -> str:
    """This program by its path; relative where that is shorter."""
    path = Path(sys.argv[0]).absolute()
    if path.name != "himalia":
        return f"{sys.executable} -m himalia.cli"
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
