"""How many connections may be open, and which of them make room for others."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from himalia.errors import TooManyConnections
from himalia.server.http.admission import (
    LOOPBACK_FACTOR,
    Admission,
    Admitted,
    Refusal,
    address_group,
    connections_within_descriptors,
)
from tests.server.raw_clients import RawWebSocket, Wire, until
from tests.server.server_process import ServerProcess
from tests.servers import RunningServer

Serve = Callable[..., RunningServer]
TOKEN = "correct-horse-battery-staple"
UNFINISHED = b"POST /topics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nx"


def admit(admission: Admission, address: str, aborted: list[str], name: str = "") -> Admitted:
    admitted = admission.admit(address)
    assert admitted is not None
    admitted.abort = lambda: aborted.append(name)
    return admitted


# Without a server


def test_the_longest_idle_of_an_address_makes_room() -> None:
    """One more than the limit closes the oldest of the same address; other addresses keep theirs."""
    admission, aborted = Admission(100, 2), list[str]()
    for name, address in (("a", "10.0.0.1"), ("other", "10.0.0.2"), ("b", "10.0.0.1"), ("c", "10.0.0.1")):
        admit(admission, address, aborted, name)
    assert aborted == ["a"]
    assert (admission.count, admission.refused) == (3, {Refusal.ADDRESS: 1})


def test_who_has_shown_a_key_does_not_count_for_its_address() -> None:
    """A known connection is neither counted nor closed for a new one, however many there are."""
    admission, aborted = Admission(100, 2), list[str]()
    for _ in range(50):
        admit(admission, "10.0.0.1", aborted).identify("key:a")
    admit(admission, "10.0.0.1", aborted, "a")
    assert (aborted, admission.count, admission.anonymous_count) == ([], 51, 1)


def test_a_caller_does_not_take_all_places() -> None:
    """The last of them are for others; a connection that it may not have can make room, and one that ends does."""
    admission, aborted = Admission(16, 100), list[str]()
    mine = [admit(admission, "10.0.0.1", aborted) for _ in range(15)]
    for one in mine[:14]:
        one.identify("key:greedy")
        one.identify("key:greedy")
    with pytest.raises(TooManyConnections, match="'key:greedy' has 14 connections open"):
        mine[14].identify("key:greedy")
    assert admission.anonymous_count == 1
    admit(admission, "10.0.0.2", aborted, "other").identify("key:other")
    mine[0].release()
    mine[0].release()
    mine[0].identify("key:greedy")  # by a request that was still under way
    mine[14].identify("key:greedy")
    # A connection may change its caller.
    mine[14].identify("key:other")
    admit(admission, "10.0.0.1", aborted).identify("key:greedy")
    assert (aborted, admission.anonymous_count, admission.count) == ([], 0, 16)
    for one in mine:
        one.release()
    assert dict(admission._of_caller) == {"key:other": 1, "key:greedy": 1}


def test_who_is_being_answered_is_the_last_to_make_room() -> None:
    """A connection on which a request is being answered is closed only if all of them are."""
    admission, aborted = Admission(100, 2), list[str]()
    one = admit(admission, "10.0.0.1", aborted, "busy")
    one.busy = True
    admit(admission, "10.0.0.1", aborted, "idle")
    admit(admission, "10.0.0.1", aborted, "new").busy = True
    assert aborted == ["idle"]
    admit(admission, "10.0.0.1", aborted)
    assert aborted == ["idle", "busy"]


def test_a_full_server_closes_the_longest_idle_without_a_key_or_refuses() -> None:
    """Known connections keep their places; where all are known, a new one is refused."""
    admission, aborted = Admission(2, 100), list[str]()
    admit(admission, "10.0.0.1", aborted, "known").identify("key:a")
    admit(admission, "10.0.0.2", aborted, "anonymous")
    newest = admit(admission, "10.0.0.3", aborted, "newest")
    assert (aborted, admission.count) == (["anonymous"], 2)
    newest.identify("key:b")
    assert admission.admit("10.0.0.4") is None
    newest.release()
    newest.release()
    assert admission.admit("10.0.0.4") is not None
    assert (admission.count, admission.refused[Refusal.FULL]) == (2, 2)


def test_places_are_given_back() -> None:
    """Nothing is kept of connections that are gone, whether they were known or not."""
    admission, aborted = Admission(1000, 10), list[str]()
    for number in range(500):
        admitted = admit(admission, f"10.0.{number % 256}.{number % 7}", aborted)
        if number % 2:
            admitted.identify("key:a")
            admitted.identify("key:a")
        admitted.release()
    assert (admission.count, admission.anonymous_count, admission._of_group, aborted) == (0, 0, {}, [])


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8:1:2::1", "2001:db8:1:2:ffff::9", True),
        ("2001:db8:1:2::1", "2001:db8:1:3::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2", True),
        ("::1", "::2", False),
        ("", "10.0.0.1", False),
    ],
)
def test_what_counts_as_one_address(one: str, two: str, same: bool) -> None:
    """Of IPv6 it is a network of 64 bits, because each of its hosts has all of its addresses."""
    assert (address_group(one) == address_group(two)) is same


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_loopback_has_four_times_as_many(address: str) -> None:
    """A proxy in front of the server brings the connections of many clients from one address."""
    admission, aborted = Admission(100, 2), list[str]()
    for _ in range(2 * LOOPBACK_FACTOR):
        admit(admission, address, aborted)
    assert aborted == []
    admit(admission, address, aborted)
    assert len(aborted) == 1


@pytest.mark.parametrize(("limit", "connections"), [(256, 192), (1024, 768), (16384, 11_000), (None, 11_000)])
def test_file_descriptors_are_left_for_the_log_and_kernels(
    monkeypatch: pytest.MonkeyPatch, limit: int | None, connections: int
) -> None:
    """Connections take at most three quarters of what the process may open."""
    soft = resource.RLIM_INFINITY if limit is None else limit
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (soft, soft))
    assert connections_within_descriptors(10_000) == connections


# On a real server


def test_silent_connections_of_an_address_do_not_keep_others_out(serve: Serve) -> None:
    """A new connection from the same address is answered; the oldest silent one is closed, and no known one."""
    server = serve(token=TOKEN, anonymous_connections_max=2, handshake_timeout_s=3600)
    with ExitStack() as stack, RawWebSocket(server) as known:
        silent = [stack.enter_context(Wire(server.port)) for _ in range(2 * LOOPBACK_FACTOR)]
        until(lambda: server.on_loop(lambda: server.context.admission.anonymous_count) == len(silent))
        with server.http(headers=server.headers) as http:
            assert http.get("/topics").status_code == 200
            assert silent[0].until_end() == b""
            refused = 'himalia_connections_refused_total{reason="address"} 1.0'
            assert refused in http.get("/metrics").text
        silent[1].send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert silent[1].response()[0] == 200
        assert known.is_alive()
    until(lambda: server.on_loop(lambda: server.context.admission.count) == 0)


@pytest.mark.parametrize("end", ["close", "reset", "refused handshake"])
def test_every_way_to_go_gives_the_place_back(serve: Serve, end: str) -> None:
    """Requests, WebSockets and handshakes that are refused: afterwards no connection is counted."""
    server = serve(token=TOKEN)
    for _ in range(3):
        with Wire(server.port) as wire:
            if end == "refused handshake":
                wire.send(
                    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
                )
                assert wire.response()[0] in (400, 401, 426)
            else:
                wire.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert wire.response()[0] == 200
            if end == "reset":
                wire.reset()
        RawWebSocket(server).reset()
    until(lambda: server.on_loop(lambda: server.context.admission.count) == 0)


@pytest.mark.slow
def test_unfinished_bodies_without_a_key_keep_nobody_out(tmp_path: Path) -> None:
    """More sockets than the server has file descriptors, each with a byte of a body: others are answered at once."""
    with ServerProcess(tmp_path, descriptors=256) as server, ExitStack() as stack:
        for _ in range(400):
            wire = stack.enter_context(Wire(server.port))
            wire.send(UNFINISHED)
        began = time.monotonic()
        with server.http() as http:
            assert http.get("/topics").status_code == 200
            assert time.monotonic() - began < 5
            http.post("/topics", json={"name": "orders"}).raise_for_status()
        assert server.descriptors() < 256


@pytest.mark.slow
def test_without_file_descriptors_clients_wait_and_it_is_said_once(tmp_path: Path) -> None:
    """No descriptor is left for a connection: it is logged and counted, no processor time is burnt, and the client is
    served later."""
    with ServerProcess(tmp_path) as server, server.http() as http:
        assert http.get("/topics").status_code == 200
        process = psutil.Process(server.pid)
        soft, hard = process.rlimit(psutil.RLIMIT_NOFILE)
        process.rlimit(psutil.RLIMIT_NOFILE, (3, hard))
        with Wire(server.port) as wire:
            wire.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            until(lambda: "no connection can be accepted" in server.stderr())
            until(lambda: 'reason="descriptors"} 3.0' in http.get("/metrics").text)
            assert server.cpu_s(2.0) < 0.5
            process.rlimit(psutil.RLIMIT_NOFILE, (soft, hard))
            assert wire.response()[0] == 200
        assert server.stderr().count("no connection can be accepted") == 1


@pytest.mark.slow
def test_the_limit_of_descriptors_is_raised_at_start(tmp_path: Path) -> None:
    """A server may open as many files as the system allows it, not as many as its shell happened to say."""
    with ServerProcess(tmp_path, descriptors=(200, 900)) as server:
        assert psutil.Process(server.pid).rlimit(psutil.RLIMIT_NOFILE) == (900, 900)
        assert "at most 675 connections are accepted" in server.stderr()
