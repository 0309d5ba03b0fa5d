"""Whose kernel it is, who may use it, and who did what to it: with real kernels."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from himalia.topics import AUDIT_TOPIC
from tests.server.raw_clients import until
from tests.server.server_process import ServerProcess
from tests.servers import DEADLINE_S, RunningServer, ask, hear_events, start_server

Serve = Callable[..., RunningServer]

RIGHTS = {
    "ann": 'execute = ["own"]\nsubscribe = ["own"]',
    "bob": 'execute = ["own"]\nsubscribe = ["own", "news"]',
    "blind": 'execute = ["own"]',
    "runner": 'execute = ["kernels.*"]',
    "admin": 'execute = ["kernels.*"]\nsubscribe = [">"]\nmanage = [">", "audit.events"]',
}


def write_keys(path: Path, **secrets: str) -> Path:
    path.write_text(
        "\n".join(
            f'[keys.{name}]\nkey = "{secrets.get(name, secret(name))}"\n{rights}'
            for name, rights in RIGHTS.items()
        )
    )
    path.chmod(0o600)
    return path


def secret(name: str) -> str:
    return f"{name}-0123456789-0123456789"


@pytest.fixture(scope="module")
def shared(serve_all: Serve, tmp_path_factory: pytest.TempPathFactory) -> RunningServer:
    server = serve_all(keys_file=write_keys(tmp_path_factory.mktemp("keys") / "keys.toml"))
    with server.http(headers={"X-API-Key": secret("admin")}) as http:
        http.post("/topics", json={"name": "news"}).raise_for_status()
    return server


class Callers:
    """An HTTP client for each key."""

    def __init__(self, server: RunningServer) -> None:
        self._clients = {name: server.http(headers={"X-API-Key": secret(name)}) for name in RIGHTS}

    def __getattr__(self, name: str) -> httpx.Client:
        return self._clients[name]

    def close(self) -> None:
        for client in self._clients.values():
            client.close()


@pytest.fixture(scope="module")
def callers(shared: RunningServer) -> Iterator[Callers]:
    callers = Callers(shared)
    yield callers
    callers.close()


@pytest.fixture(scope="module")
def anns(callers: Callers) -> str:
    """A kernel that ann started and that stays."""
    return started(callers.ann)


def started(http: httpx.Client) -> str:
    answer = http.post("/api/kernels", json={})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def run(http: httpx.Client, kernel: str, code: str) -> dict[str, Any]:
    answer = http.post(f"/api/kernels/{kernel}/execute", json={"code": code, "wait": True})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def events_in(http: httpx.Client, kernel: str) -> list[dict[str, Any]]:
    """What the kernel's topic has of kernel events: their content, with the record's own username."""
    answer = http.get(f"/topics/kernels.{kernel}/messages", params={"limit": 10_000})
    assert answer.status_code == 200, answer.text
    messages = [one["message"] for one in answer.json()["messages"]]
    return [
        {**one["payload"]["content"], "username": one["headers"]["username"]}
        for one in messages
        if one["headers"]["channel"] == "kernel"
    ]


def trail(http: httpx.Client, kernel: str) -> list[tuple[str, str]]:
    """The audit's events of a kernel, and their callers."""
    messages = http.get(f"/topics/{AUDIT_TOPIC}/messages", params={"limit": 10_000}).json()["messages"]
    payloads = [one["message"]["payload"] for one in messages]
    return [(one["event"], one["caller"]) for one in payloads if one.get("kernel_id") == kernel]


# Whose it is


def test_a_kernel_is_its_starters(callers: Callers, anns: str) -> None:
    """The owner is in the answer, in the list, and in the kernel's first record."""
    assert callers.ann.get(f"/api/kernels/{anns}").json()["owner"] == "key:ann"
    assert [one["owner"] for one in callers.ann.get("/api/kernels").json() if one["id"] == anns] == [
        "key:ann"
    ]
    first = events_in(callers.ann, anns)[0]
    assert (first["event"], first["owner"], first["caller"]) == ("started", "key:ann", "key:ann")


def test_an_owner_lists_reads_and_runs_its_own(callers: Callers, anns: str) -> None:
    """With ``own`` in both rights: everything about kernels, on those that it started."""
    ann = callers.ann
    result = run(ann, anns, "print(6 * 7)")
    assert (result["status"], result["outputs"][0]["text"], result["withheld"]) == ("ok", "42\n", False)
    again = ann.get(f"/api/kernels/{anns}/executions/{result['request_id']}")
    assert again.json()["outputs"] == result["outputs"]
    assert [one["id"] for one in ann.get("/api/kernels").json()] == [anns]
    assert [one["name"] for one in ann.get("/topics").json()["topics"]] == [f"kernels.{anns}"]
    assert set(ann.get("/stats").json()["topics"]) == {f"kernels.{anns}"}
    with ann.stream("GET", f"/topics/kernels.{anns}/events", params={"last_n": 1}) as stream:
        assert stream.status_code == 200


CALLS: list[tuple[str, str, Any]] = [
    ("GET", "/api/kernels/{id}", None),
    ("DELETE", "/api/kernels/{id}", None),
    ("POST", "/api/kernels/{id}/interrupt", None),
    ("POST", "/api/kernels/{id}/restart", None),
    ("POST", "/api/kernels/{id}/execute", {"code": "1"}),
    ("POST", "/api/kernels/{id}/input", {"value": "x"}),
    ("GET", "/api/kernels/{id}/executions/r", None),
    ("DELETE", "/api/kernels/{id}/executions/r", None),
    ("GET", "/topics/kernels.{id}/messages", None),
    ("GET", "/topics/kernels.{id}/events", None),
]


@pytest.mark.parametrize(("method", "path", "body"), CALLS, ids=[f"{call[0]} {call[1]}" for call in CALLS])
def test_nothing_of_it_is_anothers(callers: Callers, anns: str, method: str, path: str, body: Any) -> None:
    """Another caller with the same rights is refused every call about it, and the kernel goes on."""
    answer = callers.bob.request(method, path.format(id=anns), json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "FORBIDDEN"), answer.text
    assert callers.ann.get(f"/api/kernels/{anns}").json()["execution_state"] in ("idle", "busy")


def test_lists_show_an_owner_its_own(callers: Callers, anns: str) -> None:
    """Another's kernel is in no list: neither of kernels nor of topics, nor in the statistics."""
    for path in ("/api/kernels", "/topics", "/stats"):
        assert anns not in callers.bob.get(path).text


async def test_a_pattern_shows_an_owner_its_own(shared: RunningServer, callers: Callers, anns: str) -> None:
    """``kernels.*`` follows the caller's own kernels: those that are there, and one that is started later."""
    headers = {"X-API-Key": secret("bob")}
    async with shared.connect(additional_headers=headers) as ws:
        refused = await ask(ws, type="subscribe", topic=f"kernels.{anns}", client_id="name")
        assert refused["error"]["code"] == "FORBIDDEN"
        for pattern in ("kernels.*", ">"):
            ack = await ask(ws, type="subscribe", topic=pattern, client_id=pattern, last_n=10)
            assert f"kernels.{anns}" not in ack["topics"]
        run(callers.ann, anns, "print('for ann only')")
        bobs = started(callers.bob)
        events = await hear_events(ws, 4)
    assert {event["topic"] for event in events} == {f"kernels.{bobs}"}
    assert callers.bob.delete(f"/api/kernels/{bobs}").status_code == 204
    # Its topic stays his when the kernel is gone.
    assert events_in(callers.bob, bobs)[-1]["event"] == "stopped"


def test_an_owner_attaches_to_nothing(callers: Callers, anns: str) -> None:
    """``own`` is for kernels that the caller started: attaching could give it another's."""
    for body in ({"all": True}, {"connection_file": f"kernel-{anns}.json"}):
        answer = callers.ann.post("/api/kernels/attach", json=body)
        assert answer.status_code == 403
        assert "only to start its own" in answer.json()["message"]


def test_an_owner_reads_no_tables(callers: Callers) -> None:
    """Tables hold every kernel's executions, so they are refused to those who may read only their own."""
    for path in ("/tables", "/tables/executions"):
        answer = callers.ann.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "FORBIDDEN")
        assert "which hold every topic" in answer.json()["error"]["message"]


def test_own_is_not_a_topic(callers: Callers) -> None:
    """A topic that is called ``own`` is not what the right means."""
    callers.admin.post("/topics", json={"name": "own"}).raise_for_status()
    assert callers.admin.get("/topics/own/messages").status_code == 200
    assert callers.ann.get("/topics/own/messages").status_code == 403
    assert "own" not in [one["name"] for one in callers.ann.get("/topics").json()["topics"]]


def test_the_owner_is_kept_over_a_restart(tmp_path: Path) -> None:
    """A server that comes back finds whose kernel it is; a key with a new secret is the same caller."""
    keys = write_keys(tmp_path / "keys.toml")
    settings: dict[str, Any] = {"log": f"sqlite://{tmp_path}/log.db", "keys_file": keys, "kernels_stay": True}
    first = start_server(**settings)
    with first.http(headers={"X-API-Key": secret("ann")}) as ann:
        kernel = started(ann)
    first.stop()
    write_keys(keys, ann="another-secret-of-ann-0123456789")
    second = start_server(**{**settings, "kernels_stay": False})
    try:
        with second.http(headers={"X-API-Key": "another-secret-of-ann-0123456789"}) as ann:
            assert ann.get(f"/api/kernels/{kernel}").json()["owner"] == "key:ann"
            assert run(ann, kernel, "1")["status"] == "ok"
            assert [one["owner"] for one in events_in(ann, kernel) if one["event"] == "reattached"] == [
                "key:ann"
            ]
        with second.http(headers={"X-API-Key": secret("bob")}) as bob:
            assert bob.get(f"/api/kernels/{kernel}").status_code == 403
    finally:
        second.stop()


# Who did what


def test_records_and_the_trail_say_who(callers: Callers) -> None:
    """Everything that is asked of a kernel carries the caller's name: in the topic, and in the audit."""
    kernel = started(callers.ann)
    admin = callers.admin
    result = run(admin, kernel, "1 + 1")
    assert result["caller"] == "key:admin"
    running = admin.post(
        f"/api/kernels/{kernel}/execute", json={"code": "import time; time.sleep(60)"}
    ).json()
    until(lambda: admin.get(f"/api/kernels/{kernel}/executions/{running['request_id']}").json()["started_us"])
    cancelled = callers.runner.delete(f"/api/kernels/{kernel}/executions/{running['request_id']}")
    assert cancelled.json()["status"] == "cancelled"
    until(lambda: events_in(admin, kernel)[-1]["event"] == "interrupted")
    assert admin.post(f"/api/kernels/{kernel}/interrupt").status_code == 204
    sleep = {"code": "import time; time.sleep(60)"}
    admin.post(f"/api/kernels/{kernel}/execute", json=sleep).raise_for_status()
    assert callers.runner.post(f"/api/kernels/{kernel}/restart").status_code == 200
    admin.post(f"/api/kernels/{kernel}/execute", json=sleep).raise_for_status()
    assert callers.ann.delete(f"/api/kernels/{kernel}").status_code == 204
    told = [(one["event"], one.get("caller"), one["username"]) for one in events_in(admin, kernel)]
    by_admin, by_ann, by_runner = (2 * (f"key:{name}",) for name in ("admin", "ann", "runner"))
    assert told == [
        ("started", *by_ann),
        ("request_queued", *by_admin),
        ("request_closed", None, "himalia"),
        ("request_queued", *by_admin),
        ("request_closed", *by_runner),
        ("interrupted", *by_runner),
        ("interrupted", *by_admin),
        ("request_queued", *by_admin),
        ("request_closed", *by_runner),
        ("restarting", *by_runner),
        ("restarted", *by_runner),
        ("request_queued", *by_admin),
        ("request_closed", *by_ann),
        ("stopped", *by_ann),
    ]
    until(lambda: trail(admin, kernel)[-1][0] == "kernel_stopped")
    assert trail(admin, kernel) == [
        ("kernel_started", "key:ann"),
        ("code_run", "key:admin"),
        ("code_run", "key:admin"),
        ("execution_cancelled", "key:runner"),
        ("kernel_interrupted", "key:admin"),
        ("code_run", "key:admin"),
        ("kernel_restarted", "key:runner"),
        ("code_run", "key:admin"),
        ("kernel_stopped", "key:ann"),
    ]


def test_the_trail_has_the_request_and_not_the_code(
    shared: RunningServer, callers: Callers, anns: str
) -> None:
    """Of code that ran it has who, where and the request's id."""
    result = run(callers.ann, anns, "1 + 1")
    assert shared.audit_trail("code_run")[-1] == {
        "event": "code_run",
        "caller": "key:ann",
        "kernel_id": anns,
        "request_id": result["request_id"],
    }


def test_what_was_refused_is_not_in_the_trail(callers: Callers) -> None:
    """A kernel that is dead was neither interrupted nor restarted by those who asked for it."""
    kernel = started(callers.ann)
    callers.ann.post(f"/api/kernels/{kernel}/execute", json={"code": "import os; os._exit(1)"})
    until(lambda: ("kernel_stopped", "server") in trail(callers.admin, kernel))
    for verb in ("interrupt", "restart"):
        assert callers.ann.post(f"/api/kernels/{kernel}/{verb}").status_code in (404, 409)
    assert trail(callers.admin, kernel)[-1] == ("kernel_stopped", "server")


def test_who_started_a_kernel_that_never_answers_is_in_the_trail(callers: Callers, tmp_path: Path) -> None:
    """Its code ran, although the start failed."""
    (tmp_path / "sitecustomize.py").write_text("import os\nif 'himalia_test' in os.environ: os._exit(3)\n")
    environment = {"PYTHONPATH": str(tmp_path), "himalia_test": "1"}
    before = len(kernels_started(callers.admin))
    assert callers.ann.post("/api/kernels", json={"env": environment}).status_code == 502
    assert kernels_started(callers.admin)[before:] == ["key:ann"]


def kernels_started(http: httpx.Client) -> list[str]:
    messages = http.get(f"/topics/{AUDIT_TOPIC}/messages", params={"limit": 10_000}).json()["messages"]
    payloads = [one["message"]["payload"] for one in messages]
    return [one["caller"] for one in payloads if one["event"] == "kernel_started"]


def test_a_kernel_that_is_restarted_because_it_died_is_in_the_trail(serve: Serve) -> None:
    """The server has a new process started by itself, and the trail says so."""
    server = serve(auth=False, kernel_auto_restart=True)
    with server.http() as http:
        kernel = started(http)
        http.post(f"/api/kernels/{kernel}/execute", json={"code": "import os; os._exit(1)"})
        [restarted] = until(lambda: server.audit_trail("kernel_restarted"))
        assert restarted == {"event": "kernel_restarted", "caller": "server", "kernel_id": kernel}


def test_a_kernel_that_ended_while_no_server_ran_is_recorded(tmp_path: Path) -> None:
    """The next server finds it gone, and the trail has its end too."""
    with ServerProcess(tmp_path) as server, server.http(headers=server.headers) as http:
        kernel = started(http)
        printed = run(http, kernel, "import os; print(os.getppid())")["outputs"][0]["text"]
        keeper = psutil.Process(int(printed))
        server.kill()
    keeper.terminate()
    keeper.wait(DEADLINE_S)
    with ServerProcess(tmp_path) as server, server.http(headers=server.headers) as http:
        until(lambda: ("kernel_stopped", "server") in trail(http, kernel))


def test_a_request_names_its_caller_to_the_kernel(callers: Callers, anns: str) -> None:
    """The Jupyter header ``username`` of a request is the caller's name, and the kernel repeats it in its output."""
    result = run(callers.admin, anns, "print('who')")
    records = callers.ann.get(f"/topics/kernels.{anns}/messages", params={"last": 20}).json()["messages"]
    payloads = [one["message"]["payload"] for one in records]
    [request] = [one for one in payloads if one["header"]["msg_id"] == result["request_id"]]
    assert request["header"]["username"] == "key:admin"
    streams = [one for one in payloads if one["header"]["msg_type"] == "stream"]
    assert streams[-1]["parent_header"]["username"] == "key:admin"


def test_input_names_who_gave_it(callers: Callers, anns: str) -> None:
    """An answer to ``input()`` carries the name of the caller who sent it, who need not be the one who ran the code."""
    asked = callers.ann.post(
        f"/api/kernels/{anns}/execute", json={"code": "input('?')", "allow_stdin": True}
    ).json()
    until(lambda: callers.runner.post(f"/api/kernels/{anns}/input", json={"value": "x"}).status_code == 204)
    result = until(
        lambda: (
            found
            if (found := callers.ann.get(f"/api/kernels/{anns}/executions/{asked['request_id']}").json())[
                "status"
            ]
            == "ok"
            else None
        )
    )
    assert result["caller"] == "key:ann"
    records = callers.ann.get(f"/topics/kernels.{anns}/messages", params={"last": 20}).json()["messages"]
    payloads = [one["message"]["payload"] for one in records]
    assert [one["header"]["username"] for one in payloads if one["header"]["msg_type"] == "input_reply"] == [
        "key:runner"
    ]
    assert ("input_answered", "key:runner") in trail(callers.admin, anns)


# Running without reading


@pytest.mark.parametrize("name", ["runner", "blind"])
def test_who_may_only_execute_reads_no_results(callers: Callers, name: str) -> None:
    """Neither by ``wait``, nor by cancelling what has ended, nor by asking: how it ended is all that it is told."""
    caller = getattr(callers, name)
    kernel = started(caller)
    result = run(caller, kernel, "print('a secret'); 1 / 0")
    again = caller.delete(f"/api/kernels/{kernel}/executions/{result['request_id']}").json()
    for one in (result, again):
        assert (one["status"], one["withheld"], one["code"], one["outputs"], one["error"]) == (
            "error",
            True,
            "",
            [],
            None,
        )
        assert "secret" not in json.dumps(one) and "ZeroDivisionError" not in json.dumps(one)
    for path in (
        f"/api/kernels/{kernel}/executions/{result['request_id']}",
        f"/topics/kernels.{kernel}/messages",
    ):
        assert caller.get(path).status_code == 403
    whole = callers.admin.delete(f"/api/kernels/{kernel}/executions/{result['request_id']}").json()
    assert (whole["withheld"], whole["error"]["ename"]) == (False, "ZeroDivisionError")
    assert caller.delete(f"/api/kernels/{kernel}").status_code == 204
