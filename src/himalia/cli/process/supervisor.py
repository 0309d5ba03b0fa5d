"""The processes of ``himalia up``, from start to stop: the server, the pipeline and the demo."""

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

from himalia.cli.process.children import Exited, ManagedProcess, OutputLine
from himalia.cli.settings_options import flag_of
from himalia.cli.terminal.output import abandon_stdout, print_error, print_warning, write_line
from himalia.errors import InternalError
from himalia.local_server import RunningServer, default_warehouse_path, find_running_servers, page_url
from himalia.settings import Settings

SIGNALS = (signal.SIGINT, signal.SIGTERM)
DEMO_ENDS_WITHIN_S = 10.0
PIPELINE_ENDS_WITHIN_S = 20.0
"""It ends after its batch, which it abandons after five seconds; Spark takes a moment to stop."""
SERVER_ENDS_SPARE_S = 10.0
"""Added to twice the server's shutdown_s, which is the longest that it takes by itself."""

TRY_PUBLISHING = """publish orders '{"sku": "A-17", "quantity": 2}' --create"""
TRY_RUNNING = """run 'print("hello"); 6 * 7'"""
TRY_QUERYING = 'pipeline sql "select status, count(*) as n from executions group by status"'


class StopRequested(msgspec.Struct, frozen=True):
    """A signal arrived that ends ``himalia up``."""

    number: int


class Supervisor:
    """Runs a server and, with it, a pipeline and a demo.

    Lines and ends of these processes and signals are events in one queue, which the main thread reads. ``given`` are
    flags for the server. ``every`` is how often the pipeline reads the log; without it no pipeline is started.
    """

    def __init__(
        self, settings: Settings, given: Mapping[str, Any], *, every: str | None, demo: bool
    ) -> None:
        self._settings = settings
        self._given = given
        self._every = every
        self._has_demo = demo
        self._events: SimpleQueue[Any] = SimpleQueue()
        self._server: ManagedProcess | None = None
        self._pipeline: ManagedProcess | None = None
        self._demo: ManagedProcess | None = None
        self._is_ready = False
        self._is_filled = False
        self._is_hurried = False

    def run(self) -> int:
        """Run until a signal arrives or the server ends; then stop every process, in order. Return the exit code."""
        with self._handle_signals():
            server = self._server = self._start_server()
            ending: StopRequested | Exited | None = None
            try:
                ending = self._follow()
            finally:
                self._stop(server, ending.number if isinstance(ending, StopRequested) else signal.SIGTERM)
        if isinstance(ending, StopRequested):
            return 0
        if not self._is_ready:
            # It has printed why it cannot start.
            return server.exit_code or 1
        print_error(f"the server ended unexpectedly ({_describe_exit(server)}); see its output above")
        return 1

    @contextmanager
    def _handle_signals(self) -> Iterator[None]:
        """Make each signal an event: a ``SimpleQueue`` accepts one at any moment.

        SIGHUP stays ignored if it was, as under ``nohup``.
        """

        def request_stop(number: int, frame: FrameType | None) -> None:
            self._events.put(StopRequested(number))

        is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        numbers = SIGNALS if is_ignored else (*SIGNALS, signal.SIGHUP)
        before = {number: signal.signal(number, request_stop) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # While it runs

    def _follow(self) -> StopRequested | Exited:
        """Handle events until a signal arrives or the server ends; return that event."""
        while True:
            match event := self._events.get():
                case StopRequested():
                    return event
                case Exited(child) if child is self._server:
                    return event
                case Exited(child):
                    self._report_exit(child)
                case OutputLine(child, line):
                    self._on_line(child, line)

    def _on_line(self, child: ManagedProcess, line: str) -> None:
        if child is self._server:
            # The one line that it prints on stdout reports that it is ready; its stderr is ours.
            self._is_ready = True
            self._start_others(_find_server(child.pid))
        elif line.startswith("warning: "):
            print_warning(line.removeprefix("warning: "))
        elif child is self._pipeline and line.startswith("batch ") and not self._is_filled:
            self._is_filled = True
            _print("The pipeline has filled its tables: see Executions and Pipeline on the page.")

    def _start_others(self, server: RunningServer) -> None:
        """Print where the server is, and start the pipeline and the demo."""
        _print(f"Himalia is ready at {page_url(server.url, server.token)} (Ctrl-C stops it)")
        # They find the token by the address, also after it was rotated; a key of the keys file is in our environment.
        env = {"HIMALIA_URL": server.url}
        if self._every is not None:
            self._pipeline = self._start_pipeline(env)
        if self._has_demo:
            self._demo = ManagedProcess("himalia.demo", events=self._events, env=env)
        for line in self._greeting():
            _print(line)

    def _report_exit(self, child: ManagedProcess) -> None:
        """Warn that the pipeline or the demo has ended by itself. The server continues."""
        reason = child.last_error or f"no reason given ({_describe_exit(child)})"
        if child is self._pipeline:
            again = self._command_line(f"pipeline run --every {self._every}")
            print_warning(
                f"the pipeline has stopped: {reason}. The server and its page keep running; '{again}' starts the "
                "pipeline again"
            )
        elif child.exit_code:
            print_warning(f"the demo has stopped: {reason}. The server and its page keep running")

    # Starting

    def _start_server(self) -> ManagedProcess:
        settings = self._settings
        flags = [_flag(name, value) for name, value in self._given.items()]
        flags += [f"--log={settings.log}", f"--warehouse={settings.warehouse}", "--no-kernels-stay"]
        if "HIMALIA_LOG_LEVEL" not in os.environ:
            flags.append("--log-level=warning")
        return ManagedProcess("himalia.cli", "serve", *flags, events=self._events, captured=("stdout",))

    def _start_pipeline(self, env: Mapping[str, str]) -> ManagedProcess:
        flags = [f"--every={self._every}", f"--warehouse={self._settings.warehouse}"]
        return ManagedProcess("himalia.cli", "pipeline", "run", *flags, events=self._events, env=env)

    def _greeting(self) -> Iterator[str]:
        if self._pipeline is not None:
            yield "The pipeline is starting; it fills its tables in about half a minute."
        yield "Open that address, or try in another terminal:"
        for command in self._suggestions():
            yield "  " + self._command_line(command)

    def _suggestions(self) -> Iterator[str]:
        yield "tail demo.orders --last 3" if self._has_demo else TRY_PUBLISHING
        yield TRY_RUNNING
        if self._pipeline is not None:
            yield TRY_QUERYING

    def _command_line(self, command: str) -> str:
        """Return a command of ``himalia`` as it has to be typed in this directory."""
        program = "himalia" if shutil.which("himalia") else _program()
        warehouse = self._settings.warehouse
        is_elsewhere = command.startswith("pipeline ") and warehouse != default_warehouse_path()
        return f"{program} {command}" + (
            f" --warehouse {shlex.quote(str(warehouse))}" if is_elsewhere else ""
        )

    # Stopping

    def _stop(self, server: ManagedProcess, number: int) -> None:
        """Stop the demo, then the pipeline, then the server with its kernels. No process is left."""
        others = [(self._demo, DEMO_ENDS_WITHIN_S), (self._pipeline, PIPELINE_ENDS_WITHIN_S)]
        if any(child is not None and not child.has_ended for child, _ in others):
            _print("Stopping, in order; press Ctrl-C again to stop without waiting.")
        for child, within_s in others:
            if child is not None:
                self._stop_child(child, signal.SIGTERM, within_s)
        # After SIGINT the server tells its clients not to reconnect. A server that is still starting has no clients,
        # and would report the signal as a failure.
        forwarded = signal.SIGINT if number == signal.SIGINT and self._is_ready else signal.SIGTERM
        within_s = 2 * self._settings.shutdown_s + SERVER_ENDS_SPARE_S
        self._stop_child(server, forwarded, within_s, is_patient=True)

    def _stop_child(
        self, child: ManagedProcess, number: int, within_s: float, *, is_patient: bool = False
    ) -> None:
        """Send a child a signal and wait for its end; kill it after ``within_s``, or at a further Ctrl-C."""
        child.signal(number)
        deadline = time.monotonic() + within_s
        while not child.has_ended:
            is_overdue = time.monotonic() > deadline
            if is_overdue or (self._is_hurried and not is_patient):
                child.kill()
                deadline = time.monotonic() + within_s
            self._await_event(deadline)

    def _await_event(self, deadline: float) -> None:
        try:
            event = self._events.get(timeout=max(deadline - time.monotonic(), 0))
        except Empty:
            return
        # Not SIGTERM: where several programs forward it, it arrives several times.
        if event == StopRequested(signal.SIGINT):
            self._is_hurried = True


def _find_server(pid: int) -> RunningServer:
    for server in find_running_servers():
        if server.pid == pid:
            return server
    raise InternalError("the server runs, but its runtime file is gone; stop it, and start it again")


def _print(line: str) -> None:
    try:
        write_line(line)
    except OSError:  # the reader of stdout has closed it, which is no reason to end
        abandon_stdout()


def _flag(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return flag_of(name) if value else flag_of(f"no_{name}")
    return f"{flag_of(name)}={value}"


def _describe_exit(child: ManagedProcess) -> str:
    return f"exit code {child.exit_code}"


def _program() -> str:
    """Return the path of this program, relative to the current directory if it is below it."""
    path = Path(sys.argv[0]).absolute()
    if path.name != "himalia":
        return f"{sys.executable} -m himalia.cli"
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
