"""Run a server under test as a child process, measure it, and end it by its pid."""

import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

START_MAX_S = 30.0
END_MAX_S = 15.0
LOG_TAIL_CHARS = 300


class PeerFailed(Exception):
    """A server under test did not start, or the load on it failed."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def accepts_connections(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


@contextmanager
def running(
    command: Sequence[str], log: Path, is_ready: Callable[[], bool], within_s: float = START_MAX_S
) -> Iterator[int]:
    """Run a server until the block ends; yield its pid when it is ready."""
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    except OSError as error:
        raise PeerFailed(f"{command[0]} cannot be started: {error.strerror}") from error
    try:
        _wait_until_ready(process, log, is_ready, within_s)
        yield process.pid
    finally:
        _end(process)


def _wait_until_ready(
    process: subprocess.Popen[bytes], log: Path, is_ready: Callable[[], bool], within_s: float
) -> None:
    deadline = time.monotonic() + within_s
    while not is_ready():
        if process.poll() is not None:
            raise PeerFailed(f"it ended with status {process.returncode} while starting: …{_tail(log)}")
        if time.monotonic() > deadline:
            raise PeerFailed(f"it was not ready after {within_s:.0f} s: …{_tail(log)}")
        time.sleep(0.02)


def _tail(log: Path) -> str:
    """Return the end of the server's output on one line."""
    return " ".join(log.read_text(errors="replace").split())[-LOG_TAIL_CHARS:]


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(END_MAX_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def memory_bytes(pid: int) -> int:
    """Return the resident memory of the process."""
    return _status_bytes(pid, "VmRSS")


def memory_peak_bytes(pid: int) -> int:
    """Return the peak resident memory of the process."""
    return _status_bytes(pid, "VmHWM")


def _status_bytes(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    raise PeerFailed(f"process {pid} has no {field}: it has ended")


def waited_for_core_s(pid: int, thread_id: int) -> float:
    """Return how long a thread was ready to run but waited for a core, since its start."""
    return int(Path(f"/proc/{pid}/task/{thread_id}/schedstat").read_text().split()[1]) / 1e9


def open_descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))
