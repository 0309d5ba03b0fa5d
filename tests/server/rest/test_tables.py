"""The pipeline's tables over REST."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from himalia.client import Client, SyncClient
from himalia.errors import BadQuery, Forbidden, TableNotFound
from himalia.server.rest import table_queries
from himalia.server.rest.table_queries import QuerySlots
from tests.server.identity.credentials import write_keys
from tests.server.raw_clients import until
from tests.servers import DEADLINE_S, RunningServer
from tests.tables.sample import write_sample

KEYS = """
[keys.reader]
key = "reader-0123456789"
subscribe = [">"]

[keys.partial]
key = "partial-0123456789"
subscribe = ["orders", "kernels.>"]
manage = [">"]

[keys.barred]
key = "barred-0123456789"
subscribe = [">"]
[keys.barred.limits]
queries = 0
"""
ENDLESS = "exists (select 1 from generate_series(1, 1000000000000) as t(value) where value < 0)"


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tables") / "warehouse"
    write_sample(path)
    return path


@pytest.fixture(scope="module")
def tabled(serve_all: Callable[..., RunningServer], warehouse: Path) -> RunningServer:
    return serve_all(auth=False, kernels=False, warehouse=warehouse)


@pytest.fixture
def http(tabled: RunningServer) -> Iterator[httpx.Client]:
    with tabled.http() as client:
        yield client


def error_of(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def workers() -> list[psutil.Process]:
    return [child for child in psutil.Process().children() if "himalia.tables.worker" in words_of(child)]


def words_of(process: psutil.Process) -> list[str]:
    """Its command line; none if it has ended, or is just ending."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


@pytest.mark.slow
def test_what_tables_there_are(http: httpx.Client) -> None:
    """Names, sizes, columns and what they mean."""
    tables = {table["name"]: table for table in http.get("/tables").json()["tables"]}
    assert list(tables)[:3] == ["messages", "iopub", "executions"]
    assert (tables["messages"]["rows"], tables["executions"]["rows"]) == (30, 7)
    assert {"name": "queue_ms", "type": "double", "description": "from queued to started"} in tables[
        "executions"
    ]["columns"]


@pytest.mark.slow
def test_rows_of_a_table(http: httpx.Client) -> None:
    """A condition, an order, columns and a limit; and whether there are more."""
    given = {"where": "status = 'ok'", "order": "run_ms desc", "columns": "code, run_ms", "limit": 2}
    assert http.get("/tables/executions", params=given).json() == {
        "table": "executions",
        "columns": ["code", "run_ms"],
        "rows": [{"code": "print(5)", "run_ms": 62.5}, {"code": "print(4)", "run_ms": 50.0}],
        "truncated": True,
    }
    [row] = http.get("/tables/kernel_health").json()["rows"]
    assert (row["window_start"], row["histogram"]) == ("2026-11-16T02:00:00.000000Z", {"29": 1, "37": 5})
    everything = http.get("/tables/messages", params={"where": ""}).json()
    assert (len(everything["rows"]), everything["truncated"]) == (30, False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("/tables/nope", (404, "TABLE_NOT_FOUND")),
        ("/tables/..%2Fwarehouse%2Fmessages", (404, "NOT_FOUND")),
        ("/tables/messages?where=nope%20%3D%201", (422, "BAD_QUERY")),
        ("/tables/messages?where=true)%20limit%20100%20--", (422, "BAD_QUERY")),
        ("/tables/messages?where=true;%20drop%20table%20messages", (422, "BAD_QUERY")),
        ("/tables/messages?where=exists%20(select%20*%20from%20%27/etc/passwd%27)", (404, "TABLE_NOT_FOUND")),
        ("/tables/messages?columns=nope", (422, "BAD_REQUEST")),
        ("/tables/messages?columns=", (422, "BAD_REQUEST")),
        ("/tables/messages?order=(select%201)", (422, "BAD_REQUEST")),
        ("/tables/messages?limit=0", (422, "BAD_REQUEST")),
        ("/tables/messages?limit=10001", (422, "BAD_REQUEST")),
        ("/tables/messages?limit=x", (422, "BAD_REQUEST")),
        (f"/tables/messages?where={'x' * 10_001}", (422, "BAD_REQUEST")),
    ],
)
def test_what_is_refused(http: httpx.Client, path: str, error: tuple[int, str]) -> None:
    """Each with its code and a sentence."""
    assert error_of(http.get(path)) == error


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_nothing_can_be_written(http: httpx.Client, method: str) -> None:
    for path in ("/tables", "/tables/messages"):
        assert http.request(method, path).status_code == 405


@pytest.mark.slow
def test_tables_need_the_right_to_read_everything(
    serve: Callable[..., RunningServer], warehouse: Path, tmp_path: Path
) -> None:
    """They hold every topic, so a key that may read some topics only sees none of them, nor their names."""
    server = serve(keys_file=write_keys(tmp_path / "keys.toml", KEYS), kernels=False, warehouse=warehouse)
    with server.http() as http:
        for path in ("/tables", "/tables/messages", "/tables/nope"):
            assert error_of(http.get(path)) == (401, "UNAUTHORIZED")
            assert error_of(http.get(path, headers={"X-API-Key": "partial-0123456789"})) == (403, "FORBIDDEN")
        found = http.get("/tables/messages", headers={"X-API-Key": "reader-0123456789"})
        assert len(found.json()["rows"]) == 30
    with (
        SyncClient(server.url, "partial-0123456789") as client,
        pytest.raises(Forbidden, match="subscribe on '>'"),
    ):
        client.tables()


def test_the_limit_of_a_key_counts(
    serve: Callable[..., RunningServer], warehouse: Path, tmp_path: Path
) -> None:
    """A key that may run no queries runs none."""
    server = serve(keys_file=write_keys(tmp_path / "keys.toml", KEYS), kernels=False, warehouse=warehouse)
    with server.http(headers={"X-API-Key": "barred-0123456789"}) as http:
        assert error_of(http.get("/tables/executions")) == (429, "RATE_LIMITED")


def test_before_the_pipeline_has_run(serve: Callable[..., RunningServer], tmp_path: Path) -> None:
    """There are no tables, and asking for one says what to do. No process is started for that."""
    server = serve(auth=False, kernels=False, warehouse=tmp_path / "none")
    with server.http() as http:
        assert http.get("/tables").json() == {"tables": []}
        response = http.get("/tables/executions")
    assert error_of(response) == (404, "TABLE_NOT_FOUND")
    assert "run `himalia pipeline run --once` first" in response.json()["error"]["message"]
    assert not workers()


@pytest.mark.slow
def test_a_slow_query_is_ended_and_holds_nobody_up(
    serve: Callable[..., RunningServer], warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While as many queries as may run do not end, messages are published as ever; then each is told, and the next is
    answered."""
    monkeypatch.setattr(table_queries, "TIME_S", 3.0)
    server = serve(auth=False, kernels=False, warehouse=warehouse, queries_max=2)
    server.create("orders")
    answers: list[tuple[int, str]] = []

    def ask() -> None:
        with server.http() as http:
            answers.append(error_of(http.get("/tables/messages", params={"where": ENDLESS})))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    slowest = 0.0
    with server.http() as http:
        while any(thread.is_alive() for thread in threads):
            began = time.monotonic()
            http.post("/topics/orders/messages", json={"payload": 1}).raise_for_status()
            slowest = max(slowest, time.monotonic() - began)
        for thread in threads:
            thread.join()
        assert answers == [(422, "QUERY_TOO_LARGE")] * 2
        assert slowest < 2.0
        assert http.get("/tables/messages").status_code == 200


@pytest.mark.slow
def test_one_query_too_many_waits_and_is_told(
    serve: Callable[..., RunningServer], warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not queued for ever."""
    server = serve(auth=False, kernels=False, warehouse=warehouse)
    server.context.tables._slots = QuerySlots(total=0, per_caller=1)
    monkeypatch.setattr(table_queries, "TIME_S", 0.2)
    with server.http() as http:
        response = http.get("/tables/messages")
    assert error_of(response) == (422, "QUERY_TOO_LARGE")
    assert "busy with other queries" in response.json()["error"]["message"]


@pytest.mark.slow
def test_one_callers_slow_queries_hold_up_no_other(
    serve: Callable[..., RunningServer], warehouse: Path, tmp_path: Path
) -> None:
    """While six slow queries of a caller run or wait, tables are listed, and another caller is answered."""
    keys = tmp_path / "keys.toml"
    keys.write_text(KEYS + KEYS.replace("reader", "other").partition("[keys.partial]")[0])
    keys.chmod(0o600)
    server = serve(keys_file=keys, kernels=False, warehouse=warehouse)

    def ask(key: str, path: str, **params: str) -> httpx.Response:
        with server.http() as http:
            return http.get(path, params=params, headers={"Authorization": f"Bearer {key}"})

    ended: list[tuple[int, str]] = []

    def ask_slowly() -> None:
        ended.append(error_of(ask("reader-0123456789", "/tables/messages", where=ENDLESS)))

    slow = [threading.Thread(target=ask_slowly) for _ in range(6)]
    for thread in slow:
        thread.start()
    deadline = time.monotonic() + 20
    while server.on_loop(lambda: len(server.context.tables._running)) < 2:
        assert time.monotonic() < deadline
    answers = [
        ask("reader-0123456789", "/tables"),
        ask("other-0123456789", "/tables"),
        ask("other-0123456789", "/tables/messages", limit="1"),
    ]
    assert [answer.status_code for answer in answers] == [200] * 3
    assert not ended
    server.stop()
    for thread in slow:
        thread.join(20)
    assert ended == [(503, "SHUTTING_DOWN")] * 6


@pytest.mark.slow
def test_slow_queries_take_no_thread_from_anything_else(
    serve: Callable[..., RunningServer], warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few threads the machine has for kernels, Arrow, sessions and files of keys."""
    monkeypatch.setattr(table_queries, "TIME_S", 600.0)
    before = set(threading.enumerate())
    server = serve(auth=False, kernels=False, warehouse=warehouse, queries_max=1, queries_per_caller=1)
    assert server.loop is not None
    loop, ended = server.loop, threading.Event()
    with ThreadPoolExecutor(1) as shared:
        server.on_loop(lambda: loop.set_default_executor(shared))

        def ask() -> None:
            with server.http() as http:
                http.get("/tables/messages", params={"where": ENDLESS})
            ended.set()

        asking = threading.Thread(target=ask)
        asking.start()
        until(lambda: server.on_loop(lambda: server.context.tables._running))
        asyncio.run_coroutine_threadsafe(asyncio.to_thread(int), loop).result(DEADLINE_S)
        assert not ended.is_set()
        server.stop()
        asking.join(DEADLINE_S)
    until(
        lambda: not any(made.name.startswith("himalia-tables") for made in {*threading.enumerate()} - before)
    )


@pytest.mark.slow
def test_a_query_that_takes_all_memory_is_told(http: httpx.Client) -> None:
    """The operating system stops it, and the next is answered."""
    response = http.get("/tables/messages", params={"where": "length(repeat('x', 1000000000)) > 1"})
    assert error_of(response) == (422, "QUERY_TOO_LARGE")
    assert "more memory than it may have" in response.json()["error"]["message"]
    assert http.get("/tables/messages").status_code == 200


@pytest.mark.slow
def test_a_server_that_stops_leaves_no_process(serve: Callable[..., RunningServer], warehouse: Path) -> None:
    """Not even in the middle of a query, which does not hold it up: whoever asked is told."""
    others = set(workers())
    server = serve(auth=False, kernels=False, warehouse=warehouse)
    answers: list[tuple[int, str]] = []
    with server.http() as http:
        assert http.get("/tables/messages").status_code == 200
        own = set(workers()) - others
        assert own

        def ask() -> None:
            answers.append(error_of(http.get("/tables/messages", params={"where": ENDLESS})))

        asking = threading.Thread(target=ask)
        asking.start()
        deadline = time.monotonic() + 20
        while not server.on_loop(lambda: server.context.tables._running):
            assert time.monotonic() < deadline
        server.stop()
        asking.join(20)
    assert answers == [(503, "SHUTTING_DOWN")]
    assert not psutil.wait_procs(own, timeout=20)[1]


@pytest.mark.slow
def test_idle_processes_are_let_go(
    serve: Callable[..., RunningServer], warehouse: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When nothing is asked for a while, a server uses no memory for it."""
    monkeypatch.setattr(table_queries, "IDLE_S", 0.2)
    server = serve(auth=False, kernels=False, warehouse=warehouse)
    before = set(workers())
    with server.http() as http:
        assert http.get("/tables/messages").status_code == 200
        deadline = time.monotonic() + 20
        while set(workers()) - before:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert http.get("/tables/messages").status_code == 200


@pytest.mark.slow
async def test_the_client(tabled: RunningServer) -> None:
    """``tables`` and ``table`` give what the server says, and raise what it refuses."""
    async with Client(tabled.url) as client:
        assert [table.name for table in await client.tables()][2] == "executions"
        found = await client.table("executions", where="status = 'error'", columns=["ename", "started"])
        assert found.rows == [{"ename": "ValueError", "started": "2026-11-16T02:04:04.123456Z"}]
        assert not found.truncated
        with pytest.raises(BadQuery, match="there is no column 'nope'"):
            await client.table("executions", where="nope")
        with pytest.raises(TableNotFound):
            await client.table("no such?table")


@pytest.mark.slow
def test_the_client_without_asyncio(tabled: RunningServer) -> None:
    with SyncClient(tabled.url) as client:
        options: dict[str, Any] = {"order": "offset", "limit": 2}
        assert [row["offset"] for row in client.table("messages", **options).rows] == [0, 1]
        assert client.tables()[0].rows == 30
