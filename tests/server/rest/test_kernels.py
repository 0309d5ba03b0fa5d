"""The kernels API: real kernels over a real server, what each call answers, and how it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager
from prometheus_client.parser import text_string_to_metric_families

from tests.server.identity.credentials import write_keys
from tests.server.raw_clients import RawWebSocket, Wire, until
from tests.servers import RunningServer

Serve = Callable[..., RunningServer]
TOKEN = "correct-horse-battery-staple"
KERNEL = "/api/kernels/{id}"
CALLS: list[tuple[str, str, Any]] = [
    ("GET", KERNEL, None),
    ("DELETE", KERNEL, None),
    ("POST", f"{KERNEL}/interrupt", None),
    ("POST", f"{KERNEL}/restart", None),
    ("POST", f"{KERNEL}/execute", {"code": "1"}),
    ("POST", f"{KERNEL}/input", {"value": "x"}),
    ("GET", f"{KERNEL}/executions/r", None),
    ("DELETE", f"{KERNEL}/executions/r", None),
]
"""Every call about one kernel, with a body that is right."""


@pytest.fixture(scope="module")
def shared(serve_all: Serve) -> RunningServer:
    return serve_all(auth=False)


@pytest.fixture(scope="module")
def kernel(shared: RunningServer) -> str:
    """The id of a kernel for all tests that leave it idle."""
    with shared.http() as http:
        return started(http)


@pytest.fixture
def http(shared: RunningServer) -> Iterator[httpx.Client]:
    with shared.http() as http:
        yield http


def started(http: httpx.Client, **body: Any) -> str:
    answer = http.post("/api/kernels", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def error_of(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of an error, which has to be in both shapes."""
    body = answer.json()
    assert list(body) == ["error", "message", "reason"], body
    assert set(body["error"]) == {"code", "message"}
    assert body["message"] == body["error"]["message"] and body["reason"] is None
    return answer.status_code, body["error"]["code"]


def run(http: httpx.Client, kernel: str, code: str, **options: Any) -> dict[str, Any]:
    """Run code and wait for its result."""
    answer = http.post(f"/api/kernels/{kernel}/execute", json={"code": code, "wait": True, **options})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def submit(http: httpx.Client, kernel: str, code: str, **options: Any) -> str:
    answer = http.post(f"/api/kernels/{kernel}/execute", json={"code": code, **options})
    assert answer.status_code == 202, answer.text
    return str(answer.json()["request_id"])


def execution(http: httpx.Client, kernel: str, request_id: str) -> dict[str, Any]:
    answer = http.get(f"/api/kernels/{kernel}/executions/{request_id}")
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def ended(http: httpx.Client, kernel: str, request_id: str) -> dict[str, Any]:
    """The result of a request, as soon as it has ended."""
    return dict(
        until(
            lambda: found if (found := execution(http, kernel, request_id))["status"] != "running" else None
        )
    )


def begun(http: httpx.Client, kernel: str, request_id: str) -> None:
    until(lambda: execution(http, kernel, request_id)["started_us"])


def printed(result: dict[str, Any]) -> str:
    return "".join(output.get("text", "") for output in result["outputs"])


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def keepers() -> set[int]:
    """The keepers of all servers of this process."""
    found = set()
    for process in psutil.Process().children(recursive=True):
        try:
            if "himalia.keeper" in process.cmdline():
                found.add(process.pid)
        except psutil.Error:  # it ended meanwhile
            continue
    return found


def forever(flag: Path) -> str:
    """Code that runs until the file is there."""
    return f"import os, time\nwhile not os.path.exists({str(flag)!r}): time.sleep(0.01)"


# Kernelspecs and kernels


def test_kernelspecs(http: httpx.Client) -> None:
    """What can be started, in Jupyter's shape; the default is among it."""
    answer = http.get("/api/kernelspecs").json()
    assert answer["default"] == "python3"
    spec = answer["kernelspecs"]["python3"]
    assert (spec["name"], spec["resources"]) == ("python3", {})
    assert spec["spec"]["language"] == "python" and "{connection_file}" in spec["spec"]["argv"]


def test_a_kernel_can_be_started_listed_and_stopped(shared: RunningServer, http: httpx.Client) -> None:
    """201 with its address; it is listed while it runs; what it did can be read when it is gone."""
    answer = http.post("/api/kernels")
    assert answer.status_code == 201
    model = answer.json()
    assert answer.headers["Location"] == f"/api/kernels/{model['id']}"
    assert (model["name"], model["execution_state"], model["foreign"]) == ("python3", "idle", False)
    assert model["topic"] == f"kernels.{model['id']}"
    assert model["responding"] and model["queued"] == 0 and model["active_request"] is None
    assert model["last_activity"].endswith("Z") and model["started"].endswith("Z")
    assert is_running(model["pid"])
    with RawWebSocket(shared) as raw:
        raw.ask(type="subscribe", topic=model["topic"], client_id="v")
        assert http.get(f"/api/kernels/{model['id']}").json()["connections"] == 1
    assert model["id"] in [one["id"] for one in http.get("/api/kernels").json()]
    result = run(http, model["id"], "print('so long')")

    assert http.delete(f"/api/kernels/{model['id']}").status_code == 204
    assert not is_running(model["pid"])
    assert error_of(http.get(f"/api/kernels/{model['id']}")) == (404, "KERNEL_NOT_FOUND")
    assert error_of(http.delete(f"/api/kernels/{model['id']}")) == (404, "KERNEL_NOT_FOUND")
    assert model["id"] not in [one["id"] for one in http.get("/api/kernels").json()]
    for _ in range(2):
        assert execution(http, model["id"], result["request_id"]) == result
    cancelled = http.delete(f"/api/kernels/{model['id']}/executions/{result['request_id']}")
    assert cancelled.json() == result
    missing = http.get(f"/api/kernels/{model['id']}/executions/nothing")
    assert error_of(missing) == (404, "EXECUTION_NOT_FOUND")


def test_what_a_kernel_is_started_with(http: httpx.Client, tmp_path: Path) -> None:
    """Jupyter's `path` is the nearest folder that exists, `env` comes on top, unknown fields are ignored."""
    kernel = started(
        http,
        name="python3",
        path=f"{tmp_path}/no/such/notebook.ipynb",
        env={"COLOUR": "red"},
        type="notebook",
    )
    result = run(http, kernel, "import os; print(os.getcwd(), os.environ['COLOUR'], 'PATH' in os.environ)")
    assert printed(result) == f"{tmp_path} red True\n"
    http.delete(f"/api/kernels/{kernel}").raise_for_status()


def test_a_kernel_does_not_see_the_secrets_of_the_server(
    http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code that prints its environment stores no secret in the log, unless the caller gave it one."""
    monkeypatch.setenv("HIMALIA_TOKEN", "the-token-of-the-server")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-key-of-the-server")
    kernel = started(http, env={"AWS_SECRET_ACCESS_KEY": "the-key-of-ann"})
    text = printed(run(http, kernel, "import os; print(dict(os.environ))"))
    assert "the-key-of-ann" in text and "of-the-server" not in text
    assert "of-the-server" not in http.get(f"/topics/kernels.{kernel}/messages").text
    http.delete(f"/api/kernels/{kernel}").raise_for_status()


@pytest.mark.parametrize(
    "body",
    [
        {"name": "cobol-on-cogs"},
        {"name": "../python3"},
        {"name": "a\0b"},
        {"name": "x" * 201},
        {"name": 1},
        {"cwd": "/no/such/directory"},
        {"cwd": "/etc/passwd"},
        {"cwd": "a\0b"},
        {"cwd": "x" * 4000},
        {"env": {"A=B": "1"}},
        {"env": {"": "1"}},
        {"env": {"A": "\0"}},
        {"env": {"A": 1}},
        {"env": ["A"]},
        [],
        "python3",
    ],
    ids=lambda body: repr(body)[:40],
)
def test_a_kernel_that_cannot_be_is_422(http: httpx.Client, body: Any) -> None:
    """Nothing is started, and the message says what is wrong."""
    before = len(http.get("/api/kernels").json())
    assert error_of(http.post("/api/kernels", json=body)) == (422, "BAD_REQUEST")
    assert len(http.get("/api/kernels").json()) == before


def test_a_kernel_that_ends_at_once_is_502(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message has its last words; nothing is left of it."""
    folder = tmp_path / "jupyter" / "kernels" / "broken"
    folder.mkdir(parents=True)
    argv = [sys.executable, "-c", "import sys; sys.exit('no licence found')", "{connection_file}"]
    spec = {"argv": argv, "display_name": "Broken", "language": "none"}
    (folder / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    with serve(auth=False).http() as http:
        assert "broken" in http.get("/api/kernelspecs").json()["kernelspecs"]
        answer = http.post("/api/kernels", json={"name": "broken"})
        assert error_of(answer) == (502, "KERNEL_FAILED")
        assert "no licence found" in answer.json()["message"]
        assert http.get("/api/kernels").json() == []


def test_limits(serve: Serve, tmp_path: Path) -> None:
    """Kernels and the requests that wait for one are limited; what has ended makes room."""
    with serve(auth=False, kernels_max=1, kernel_queue_max=2).http() as http:
        kernel = started(http)
        assert error_of(http.post("/api/kernels")) == (429, "TOO_MANY_KERNELS")
        begun(http, kernel, submit(http, kernel, forever(tmp_path / "flag")))
        waiting = [submit(http, kernel, "1") for _ in range(2)]
        refused = http.post(f"/api/kernels/{kernel}/execute", json={"code": "1"})
        assert error_of(refused) == (429, "TOO_MANY_REQUESTS")
        assert http.get(f"/api/kernels/{kernel}").json()["queued"] == 2
        (tmp_path / "flag").touch()
        assert [ended(http, kernel, one)["status"] for one in waiting] == ["ok", "ok"]
        http.delete(f"/api/kernels/{kernel}").raise_for_status()
        started(http)


# Running code


def test_execute_answers_at_once_with_where_to_look(http: httpx.Client, kernel: str) -> None:
    """202 when the request is in the log: subscribing from its offset shows all of it."""
    answer = http.post(f"/api/kernels/{kernel}/execute", json={"code": "print('hello'); 6 * 7"})
    assert answer.status_code == 202
    body = answer.json()
    assert set(body) == {"request_id", "topic", "offset"} and body["topic"] == f"kernels.{kernel}"
    where = f"/api/kernels/{kernel}/executions/{body['request_id']}"
    assert answer.headers["Location"] == where
    result = ended(http, kernel, body["request_id"])
    assert (result["status"], result["offset"], printed(result)) == ("ok", body["offset"], "hello\n")
    assert result["outputs"][1]["data"] == {"text/plain": "42"}
    found = http.get(
        f"/topics/{body['topic']}/messages",
        params={"from": body["offset"], "limit": result["end"] - body["offset"]},
    ).json()["messages"]
    first, last = found[0]["message"]["payload"], found[-1]["message"]["payload"]
    assert first["content"]["event"] == "request_queued" and last["content"]["event"] == "request_closed"
    assert first["parent_header"]["msg_id"] == last["parent_header"]["msg_id"] == body["request_id"]


def test_wait_answers_with_the_result(http: httpx.Client, kernel: str) -> None:
    """One shape for every end, and the same as is read later, any number of times."""
    good = run(http, kernel, "print('a'); print('b')")
    assert (good["status"], printed(good), good["error"]) == ("ok", "a\nb\n", None)
    assert good["kernel_id"] == kernel and good["code"] == "print('a'); print('b')"
    assert good["queued_us"] <= good["sent_us"] <= good["started_us"] <= good["finished_us"]

    bad = run(http, kernel, "1 / 0")
    assert (bad["status"], bad["error"]["ename"]) == ("error", "ZeroDivisionError")
    assert bad["outputs"][-1]["output_type"] == "error" and bad["error"]["traceback"]
    assert bad.keys() == good.keys() and bad["execution_count"] == good["execution_count"] + 1
    for result in (good, bad, good):
        assert execution(http, kernel, result["request_id"]) == result


def test_a_short_execution_has_its_duration(serve: Serve) -> None:
    """Busy and idle of a short cell are often committed together; the duration is the kernel's own."""
    with serve(auth=False).http() as http:
        kernel = started(http)
        ran_us = [run(http, kernel, "import time; time.sleep(0.02)")["run_us"] for _ in range(10)]
        sum_s = scraped(http)["himalia_kernel_execution_seconds_sum"]
    assert min(ran_us) >= 20_000
    assert sum_s == pytest.approx(sum(ran_us) / 1e6, rel=0.01)


def test_a_running_request_can_be_read(http: httpx.Client, kernel: str, tmp_path: Path) -> None:
    """Its outputs so far, with the status `running`."""
    code = f"print('begun', flush=True)\n{forever(tmp_path / 'flag')}\nprint('over')"
    request_id = submit(http, kernel, code)
    until(lambda: printed(execution(http, kernel, request_id)) == "begun\n")
    assert execution(http, kernel, request_id)["status"] == "running"
    model = http.get(f"/api/kernels/{kernel}").json()
    assert (model["execution_state"], model["active_request"]) == ("busy", request_id)
    (tmp_path / "flag").touch()
    assert printed(ended(http, kernel, request_id)) == "begun\nover\n"


def test_what_came_after_the_end_is_read_if_asked_for(
    http: httpx.Client, kernel: str, tmp_path: Path
) -> None:
    """Output of a thread that outlives its request is `late`."""
    code = (
        f"import threading\ndef work():\n    {forever(tmp_path / 'flag').replace(chr(10), chr(10) + '    ')}\n"
        "    print('late', flush=True)\nthread = threading.Thread(target=work); thread.start()"
    )
    request_id = run(http, kernel, code)["request_id"]
    (tmp_path / "flag").touch()
    where = f"/api/kernels/{kernel}/executions/{request_id}"
    until(lambda: printed(http.get(where, params={"late": True}).json()) == "late\n")
    assert printed(http.get(where).json()) == ""


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"code": 1},
        {"code": None},
        {"code": "1", "priority": "high"},
        {"code": "1", "priority": 1.5},
        {"code": "1", "priority": 1_000_001},
        {"code": "1", "timeout_s": 0},
        {"code": "1", "timeout_s": -1},
        {"code": "1", "timeout_s": 1e10},
        {"code": "1", "timeout_s": "soon"},
        {"code": "1", "wait": "yes"},
        {"code": "1", "silent": 1},
        {"code": "1", "timeout": 5},
        [],
    ],
    ids=repr,
)
def test_a_request_that_cannot_be_is_422(http: httpx.Client, kernel: str, body: Any) -> None:
    """Nothing runs; a field that is not known is not ignored, as it may be a misspelt one."""
    assert error_of(http.post(f"/api/kernels/{kernel}/execute", json=body)) == (422, "BAD_REQUEST")
    assert http.get(f"/api/kernels/{kernel}").json()["active_request"] is None


def test_a_body_is_limited(shared: RunningServer, http: httpx.Client, kernel: str) -> None:
    """More than a message may have is 413."""
    code = "#" * shared.context.frame_bytes_max
    assert error_of(http.post(f"/api/kernels/{kernel}/execute", json={"code": code})) == (
        413,
        "MESSAGE_TOO_LARGE",
    )


def test_a_timeout_interrupts_the_kernel(
    http: httpx.Client, kernel: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The request ends as `timeout` with what it had said, and the next one runs."""
    caplog.set_level("INFO", "himalia.kernels.scheduler")
    code = "print('begun', flush=True)\nimport time\ntime.sleep(600)"
    result = run(http, kernel, code, timeout_s=0.5)
    assert (result["status"], printed(result)) == ("timeout", "begun\n")
    assert "0.5 s" in result["reason"]
    assert run(http, kernel, "2 + 2")["status"] == "ok"
    [line] = [one for one in caplog.records if "ran longer than" in one.getMessage()]
    assert vars(line)["caller"] == "anonymous"


def test_cancelling(http: httpx.Client, kernel: str) -> None:
    """What runs is interrupted, what waits never runs, what has ended stays as it is."""
    runs = submit(http, kernel, "import time\ntime.sleep(600)")
    begun(http, kernel, runs)
    waits = submit(http, kernel, "waited = True")
    for request_id in (waits, runs):
        answer = http.delete(f"/api/kernels/{kernel}/executions/{request_id}")
        assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
        assert execution(http, kernel, request_id)["status"] == "cancelled"
    over = run(http, kernel, "print('waited' in globals())")
    assert printed(over) == "False\n"
    answer = http.delete(f"/api/kernels/{kernel}/executions/{over['request_id']}")
    assert (answer.status_code, answer.json()) == (200, over)
    missing = http.delete(f"/api/kernels/{kernel}/executions/nothing")
    assert error_of(missing) == (404, "EXECUTION_NOT_FOUND")


def test_interrupting(http: httpx.Client, kernel: str) -> None:
    """204, and what runs ends with the kernel's own error."""
    request_id = submit(http, kernel, "import time\ntime.sleep(600)")
    begun(http, kernel, request_id)
    assert http.post(f"/api/kernels/{kernel}/interrupt").status_code == 204
    result = ended(http, kernel, request_id)
    assert (result["status"], result["error"]["ename"]) == ("error", "KeyboardInterrupt")


def test_priorities(http: httpx.Client, kernel: str, tmp_path: Path) -> None:
    """Of those that wait the highest goes first; equals in the order they came."""
    run(http, kernel, "order = []")
    begun(http, kernel, submit(http, kernel, forever(tmp_path / "flag")))
    waiting = [
        submit(http, kernel, f"order.append({name!r})", priority=priority)
        for name, priority in (("low", -5), ("first", 0), ("second", 0), ("high", 5))
    ]
    (tmp_path / "flag").touch()
    for request_id in waiting:
        ended(http, kernel, request_id)
    assert printed(run(http, kernel, "print(order)")) == "['high', 'first', 'second', 'low']\n"


def test_input(http: httpx.Client, kernel: str) -> None:
    """Code that may ask gets the answer; nobody can answer what was not asked."""
    where = f"/api/kernels/{kernel}/input"
    assert error_of(http.post(where, json={"value": "x"})) == (409, "KERNEL_UNAVAILABLE")
    for body in ({}, {"value": 1}, {"value": "x", "colour": 1}):
        assert error_of(http.post(where, json=body)) == (422, "BAD_REQUEST")
    request_id = submit(http, kernel, "name = input('Who? '); print('Hello', name)", allow_stdin=True)
    until(lambda: http.post(where, json={"value": "Ada"}).status_code == 204)
    assert printed(ended(http, kernel, request_id)) == "Hello Ada\n"
    refused = run(http, kernel, "input('Who? ')")
    assert (refused["status"], refused["error"]["ename"]) == ("error", "StdinNotImplementedError")


def test_who_goes_away_while_waiting_stops_nothing(
    shared: RunningServer, http: httpx.Client, kernel: str, tmp_path: Path
) -> None:
    """The request goes on to its own end, and can be found in the topic."""
    end = http.get(f"/topics/kernels.{kernel}/messages", params={"last": 1}).json()["end"]
    body = json.dumps({"code": f"{forever(tmp_path / 'flag')}\nprint('all alone')", "wait": True}).encode()
    head = (
        f"POST /api/kernels/{kernel}/execute HTTP/1.1\r\nHost: 127.0.0.1:{shared.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with Wire(shared.port) as wire:
        wire.send(head.encode() + body)
        found = until(
            lambda: http.get(f"/topics/kernels.{kernel}/messages", params={"from": end}).json()["messages"]
        )
    (tmp_path / "flag").touch()
    request_id = found[0]["message"]["headers"]["parent_id"]
    result = ended(http, kernel, request_id)
    assert (result["status"], printed(result)) == ("ok", "all alone\n")


def test_restarting(http: httpx.Client, tmp_path: Path) -> None:
    """The same kernel with a new process; what ran or waited ends as `aborted`."""
    kernel = started(http)
    before = http.get(f"/api/kernels/{kernel}").json()
    run(http, kernel, "x = 1")
    runs = submit(http, kernel, forever(tmp_path / "flag"))
    begun(http, kernel, runs)
    waits = submit(http, kernel, "x")
    answer = http.post(f"/api/kernels/{kernel}/restart")
    assert answer.status_code == 200
    after = answer.json()
    assert (after["id"], after["topic"]) == (before["id"], before["topic"])
    assert after["pid"] != before["pid"] and not is_running(before["pid"])
    assert [ended(http, kernel, one)["status"] for one in (runs, waits)] == ["aborted", "aborted"]
    assert printed(run(http, kernel, "print('x' in globals())")) == "False\n"
    http.delete(f"/api/kernels/{kernel}").raise_for_status()


def test_a_kernel_that_dies_ends_its_requests(http: httpx.Client, tmp_path: Path) -> None:
    """They end as `died` with what was said; the kernel is gone, its results are not."""
    kernel = started(http)
    code = f"print('last words', flush=True)\n{forever(tmp_path / 'flag')}\nos.kill(os.getpid(), 9)"
    request_id = submit(http, kernel, code)
    until(lambda: printed(execution(http, kernel, request_id)))
    (tmp_path / "flag").touch()
    result = ended(http, kernel, request_id)
    assert (result["status"], printed(result)) == ("died", "last words\n")
    until(lambda: http.get(f"/api/kernels/{kernel}").status_code == 404)
    assert error_of(http.post(f"/api/kernels/{kernel}/execute", json={"code": "1"}))[0] == 404
    assert execution(http, kernel, result["request_id"])["status"] == "died"


# What is not there, and who may not


@pytest.mark.parametrize(("method", "path", "body"), CALLS, ids=lambda value: str(value))
def test_a_kernel_that_is_not_there_is_404(http: httpx.Client, method: str, path: str, body: Any) -> None:
    """Whatever is asked of it."""
    answer = http.request(method, path.replace("{id}", "nobody"), json=body)
    assert error_of(answer) == (404, "KERNEL_NOT_FOUND")


@pytest.mark.parametrize("id", ["a.b", "a b", "*", "%3E", "ä", "x" * 300])
@pytest.mark.parametrize(("method", "path", "body"), CALLS[:1] + CALLS[-2:], ids=lambda value: str(value))
def test_an_id_that_cannot_be_is_422(http: httpx.Client, id: str, method: str, path: str, body: Any) -> None:
    """A kernel's id is one segment of a topic's name."""
    answer = http.request(method, path.replace("{id}", id), json=body)
    assert error_of(answer) == (422, "BAD_REQUEST")


def test_errors_of_http_itself_have_both_shapes_too(http: httpx.Client) -> None:
    """Jupyter's clients understand whatever goes wrong below /api."""
    assert error_of(http.get("/api/nothing")) == (404, "NOT_FOUND")
    answer = http.put("/api/kernels", json={})
    assert error_of(answer) == (405, "METHOD_NOT_ALLOWED")
    assert answer.headers["Allow"] == "GET, POST"
    assert http.put("/api/kernels/attach", json={}).headers["Allow"] == "POST"
    assert error_of(http.get("/api/kernels", headers={"Host": "evil.example"})) == (403, "FORBIDDEN")
    bad = http.post("/api/kernels", content=b"{", headers={"Content-Type": "application/json"})
    assert error_of(bad) == (422, "BAD_REQUEST")
    assert list(http.get("/nothing").json()) == ["error"]


def test_rights(serve: Serve, tmp_path: Path) -> None:
    """`execute` on the kernel's topic to change something, `subscribe` to look; new kernels need a pattern."""
    rights = {
        "runner": 'execute = ["kernels.*"]\nsubscribe = ["kernels.*"]',
        "watcher": 'subscribe = ["kernels.>"]',
        "guest": 'execute = ["kernels.k1"]\nsubscribe = ["kernels.k1"]',
        "shop": 'publish = [">"]\nmanage = [">"]',
    }
    tables = "\n".join(f'[keys.{name}]\nkey = "{name:x<20}"\n{line}' for name, line in rights.items())
    server = serve(keys_file=write_keys(tmp_path / "keys.toml", tables))

    def ask(name: str, method: str, path: str, body: Any = None) -> httpx.Response:
        with server.http(headers={"X-API-Key": f"{name:x<20}"}) as http:
            return http.request(method, path, json=body)

    assert error_of(ask("nobody", "GET", "/api/kernels")) == (401, "UNAUTHORIZED")
    for name in ("watcher", "guest", "shop"):
        for path, body in (("/api/kernels", {}), ("/api/kernels/attach", {"all": True})):
            answer = ask(name, "POST", path, body)
            assert error_of(answer) == (403, "FORBIDDEN") and "kernels.*" in answer.json()["message"]
    kernel = ask("runner", "POST", "/api/kernels").json()["id"]
    request = ask("runner", "POST", f"/api/kernels/{kernel}/execute", {"code": "1", "wait": True}).json()
    done = f"/api/kernels/{kernel}/executions/{request['request_id']}"
    assert ask("watcher", "GET", done).status_code == 200
    assert [one["id"] for one in ask("watcher", "GET", "/api/kernels").json()] == [kernel]
    assert ask("guest", "GET", "/api/kernels").json() == ask("shop", "GET", "/api/kernels").json() == []
    assert ask("shop", "GET", "/api/kernelspecs").status_code == 200
    for method, path, body in CALLS:
        path = path.replace("{id}", kernel)
        if method != "GET":
            assert error_of(ask("watcher", method, path, body)) == (403, "FORBIDDEN"), path
        for name in ("guest", "shop"):
            assert error_of(ask(name, method, path, body)) == (403, "FORBIDDEN"), path
    # A right on something that is not there is no right to know what is.
    assert error_of(ask("guest", "GET", "/api/kernels/k1")) == (404, "KERNEL_NOT_FOUND")
    assert error_of(ask("guest", "GET", "/api/kernels/k2")) == (403, "FORBIDDEN")


def test_a_server_without_kernels_says_so(serve: Serve) -> None:
    """403 with a sentence for every call, whoever asks."""
    with serve(auth=False, kernels=False).http() as http:
        others: list[tuple[str, str, Any]] = [
            ("GET", "/api/kernelspecs", None),
            ("GET", "/api/kernels", None),
        ]
        starts: list[tuple[str, str, Any]] = [
            ("POST", "/api/kernels", {}),
            ("POST", "/api/kernels/attach", {"all": True}),
        ]
        for method, path, body in [*others, *starts, *CALLS]:
            answer = http.request(method, path.replace("{id}", "k1"), json=body)
            assert error_of(answer) == (403, "FORBIDDEN"), path
            assert "--no-kernels" in answer.json()["message"]
        assert "himalia_kernel" not in http.get("/metrics").text
        assert http.get("/health").json()["kernels"] == http.get("/stats").json()["kernels"] == 0


def test_without_kernels_nothing_of_them_is_imported(tmp_path: Path) -> None:
    """What is not used costs neither time nor memory."""
    code = f"""
import asyncio, sys
from himalia.server.app import create_app
from himalia.server.context import ServerContext
from himalia.settings import Settings
async def main():
    context = ServerContext(Settings(kernels=False, log="sqlite://{tmp_path}/log.db"))
    await context.open()
    create_app(context=context).openapi()
    await context.metrics.text()
    await context.close()
asyncio.run(main())
print([name for name in sys.modules if name.startswith(("zmq", "jupyter", "himalia.kernels"))])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("[]\n", "")


# Kernels of others


def said(http: httpx.Client, topic: str, request_id: str) -> list[str]:
    """What a request has printed, by its kernel's topic."""
    return [
        one["message"]["payload"]["content"]["text"]
        for one in http.get(f"/topics/{topic}/messages").json()["messages"]
        if one["message"]["headers"]["parent_id"] == request_id
        and one["message"]["headers"]["channel"] == "stream"
    ]


@pytest.fixture
def foreign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    """A kernel that something else started, in a runtime directory of its own."""
    (tmp_path / "jupyter").mkdir()
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    manager = KernelManager(connection_file=str(tmp_path / "jupyter" / "kernel-theirs.json"))
    manager.start_kernel()
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=30)
    yield manager, client
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def test_attaching_to_a_kernel_of_others(
    serve: Serve, foreign: tuple[KernelManager, BlockingKernelClient]
) -> None:
    """Its output is kept from then on; it is not ours to restart or to end."""
    manager, client = foreign
    server = serve(auth=False)
    with server.http() as http:
        answer = http.post("/api/kernels/attach", json={"connection_file": manager.connection_file})
        assert answer.status_code == 201, answer.text
        model = answer.json()
        assert answer.headers["Location"] == f"/api/kernels/{model['id']}"
        assert (model["foreign"], model["pid"]) == (True, None)
        again = http.post("/api/kernels/attach", json={"connection_file": manager.connection_file})
        assert (again.status_code, again.json()["id"]) == (201, model["id"])

        request_id = client.execute("print('not ours')")
        client.get_shell_msg(timeout=20)
        found = until(lambda: said(http, model["topic"], request_id))
        assert found == ["not ours\n"]
        assert printed(run(http, model["id"], "print('ours')")) == "ours\n"
        refused = http.post(f"/api/kernels/{model['id']}/restart")
        assert error_of(refused) == (409, "KERNEL_UNAVAILABLE")
        assert http.delete(f"/api/kernels/{model['id']}").status_code == 204
        assert http.get("/api/kernels").json() == []
    assert manager.is_alive()
    caller = {"caller": "anonymous", "kernel_id": model["id"]}
    assert server.audit_trail("kernel_attached", "kernel_started", "kernel_restarted", "kernel_stopped") == [
        {"event": "kernel_attached", **caller, "name": model["name"]},
        {"event": "kernel_attached", **caller, "name": model["name"]},
        {"event": "kernel_stopped", **caller, "reason": "asked to"},
    ]


def test_attaching_to_all(
    serve: Serve, foreign: tuple[KernelManager, BlockingKernelClient], tmp_path: Path
) -> None:
    """Every kernel of Jupyter's runtime directory that answers; for the others it says why not."""
    manager, _ = foreign
    runtime = tmp_path / "jupyter"
    connection = json.loads(Path(manager.connection_file).read_text())
    gone = {**connection, "shell_port": 1}
    (runtime / "kernel-gone.json").write_text(json.dumps(gone))
    (runtime / "kernel-odd.json").write_text("{}")
    with serve(auth=False).http() as http:
        answer = http.post("/api/kernels/attach", json={"all": True})
        assert answer.status_code == 200
        assert [one["foreign"] for one in answer.json()["attached"]] == [True]
        skipped = {Path(one["connection_file"]).name: one["reason"] for one in answer.json()["skipped"]}
        alone = http.post("/api/kernels/attach", json={"connection_file": str(runtime / "kernel-gone.json")})
        assert error_of(alone) == (409, "KERNEL_UNAVAILABLE")
        assert alone.json()["message"] == skipped["kernel-gone.json"]
        assert skipped["kernel-gone.json"].startswith("nothing listens at tcp://")
        assert "not a kernel's connection file" in skipped["kernel-odd.json"]
        refused = http.post("/api/kernels/attach", json={"connection_file": "gone"})
        assert error_of(refused) == (409, "KERNEL_UNAVAILABLE")


def test_only_connection_files_are_attached_to(http: httpx.Client, tmp_path: Path) -> None:
    """Nothing but a small ordinary file is opened, and nothing of what it says is told."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "secret").write_text("the secret of the house")
    (tmp_path / "large").write_text(" " * 1_000_000)
    ports = {f"{port}_port": 70_000 for port in ("shell", "iopub", "stdin", "control", "hb")}
    (tmp_path / "ports").write_text(json.dumps(ports))
    (tmp_path / "transport").write_text(json.dumps({**dict.fromkeys(ports, 1), "transport": "pigeon"}))
    names = ("pipe", "secret", "large", "ports", "transport", "nothing", ".")
    paths = [str(tmp_path / name) for name in names]
    for path in [*paths, "/dev/zero", "~nobody-of-that-name/x", "x" * 4000, "a\0b", ""]:
        answer = http.post("/api/kernels/attach", json={"connection_file": path})
        assert error_of(answer) == (422, "BAD_REQUEST"), path
        assert "secret of" not in answer.text
    for body in ({}, {"all": False}, {"all": True, "connection_file": "x"}, {"all": 1}, {"colour": 1}):
        assert error_of(http.post("/api/kernels/attach", json=body)) == (422, "BAD_REQUEST"), body


# The server around them


def test_the_topic_of_a_kernel_that_runs_cannot_be_deleted(http: httpx.Client) -> None:
    """Its output would go nowhere; afterwards it can be."""
    kernel = started(http)
    answer = http.delete(f"/topics/kernels.{kernel}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "KERNEL_UNAVAILABLE")
    assert printed(run(http, kernel, "print('still kept')")) == "still kept\n"
    http.delete(f"/api/kernels/{kernel}").raise_for_status()
    http.delete(f"/topics/kernels.{kernel}").raise_for_status()
    assert error_of(http.get(f"/api/kernels/{kernel}/executions/r")) == (404, "KERNEL_NOT_FOUND")


def scraped(http: httpx.Client) -> dict[str, float]:
    return {
        sample.name + "".join(sample.labels.values()): sample.value
        for family in text_string_to_metric_families(http.get("/metrics").text)
        for sample in family.samples
        if sample.name.startswith("himalia_kernel")
    }


def test_what_kernels_do_is_counted_and_never_taken_back(serve: Serve) -> None:
    """Metrics, health and statistics tell of kernels; counters survive a restart and the kernel itself."""
    with serve(auth=False).http() as http:
        seen = [scraped(http)]
        kernel = started(http)
        assert http.get("/health").json()["kernels"] == http.get("/stats").json()["kernels"] == 1
        run(http, kernel, "print('x')")
        run(http, kernel, "1 / 0")
        seen.append(scraped(http))
        assert seen[-1]["himalia_kernelsidle"] == 1
        http.post(f"/api/kernels/{kernel}/restart").raise_for_status()
        run(http, kernel, "print('x')")
        seen.append(scraped(http))
        http.delete(f"/api/kernels/{kernel}").raise_for_status()
        seen.append(scraped(http))
    last = seen[-1]
    assert last["himalia_kernelsidle"] == 0
    assert last["himalia_kernel_requests_totalok"] == 2 and last["himalia_kernel_requests_totalerror"] == 1
    assert last["himalia_kernel_messages_totalstream"] == 2
    assert last["himalia_kernel_faults_totalbad_signature"] == 0
    assert last["himalia_kernel_execution_seconds_count"] == 3
    assert last["himalia_kernel_routing_seconds_count"] > 10
    assert last["himalia_kernel_routing_seconds_bucket+Inf"] == last["himalia_kernel_routing_seconds_count"]
    for earlier, later in pairwise(seen):
        assert earlier.keys() == later.keys()
        for name, value in earlier.items():
            if "_total" in name or "_bucket" in name or name.endswith(("_sum", "_count")):
                assert later[name] >= value, name


class Waiting(threading.Thread):
    """Somebody who waits for code that does not end."""

    def __init__(self, server: RunningServer, kernel: str) -> None:
        super().__init__(daemon=True)
        self._server, self._kernel = server, kernel
        self.answer: httpx.Response | None = None
        self.start()

    def run(self) -> None:
        body = {"code": "print('begun', flush=True)\nimport time\ntime.sleep(600)", "wait": True}
        with self._server.http() as http:
            self.answer = http.post(f"/api/kernels/{self._kernel}/execute", json=body)

    def answered(self) -> httpx.Response:
        self.join(20)
        assert self.answer is not None
        return self.answer


def test_kernels_end_with_the_server(serve: Serve) -> None:
    """Whoever waits is told, whoever watches sees it, and no process is left."""
    server = serve(auth=False)
    with server.http() as http:
        kernel = started(http)
        pid = http.get(f"/api/kernels/{kernel}").json()["pid"]
        waiting = Waiting(server, kernel)
        until(lambda: http.get(f"/api/kernels/{kernel}").json()["active_request"])
        with RawWebSocket(server) as raw:
            raw.ask(type="subscribe", topic=f"kernels.{kernel}", client_id="v", policy="lossless")
            server.stop()
            heard: list[str | None] = []
            while not heard or heard[-1] != "stopped":
                event = raw.hear()
                if event["type"] == "event":
                    heard.append(event["message"]["payload"]["content"].get("event"))
            assert "request_closed" in heard
    assert waiting.answered().status_code == 200
    assert waiting.answered().json()["status"] == "aborted"
    assert not is_running(pid)


def test_kernels_that_stay_are_found_again(serve: Serve) -> None:
    """With kernels_stay whoever waits is told to ask later; the next server has the kernel and the request."""
    server = serve(auth=False, kernels_stay=True)
    with server.http() as http:
        kernel = started(http)
        pid = http.get(f"/api/kernels/{kernel}").json()["pid"]
        waiting = Waiting(server, kernel)
        request_id = until(lambda: http.get(f"/api/kernels/{kernel}").json()["active_request"])
        until(lambda: said(http, f"kernels.{kernel}", request_id))
        server.stop()
    assert error_of(waiting.answered()) == (503, "SHUTTING_DOWN")
    assert request_id in waiting.answered().json()["message"]
    assert is_running(pid)
    with serve(auth=False).http() as http:
        [model] = http.get("/api/kernels").json()
        assert (model["id"], model["pid"], model["active_request"]) == (kernel, pid, request_id)
        assert http.post(f"/api/kernels/{kernel}/interrupt").status_code == 204
        result = ended(http, kernel, request_id)
        assert (result["status"], result["error"]["ename"]) == ("error", "KeyboardInterrupt")
        assert printed(result) == "begun\n"
        http.delete(f"/api/kernels/{kernel}").raise_for_status()
    assert not is_running(pid)


def test_nothing_new_begins_while_the_server_stops(serve: Serve) -> None:
    """Starting, attaching and running code are 503 from the moment on that it drains."""
    server = serve(auth=False)
    with server.http() as http:
        kernel = started(http)
        server.on_loop(lambda: setattr(server.context, "draining", True))
        for path, body in (
            ("/api/kernels", {}),
            ("/api/kernels/attach", {"all": True}),
            (f"/api/kernels/{kernel}/execute", {"code": "1"}),
        ):
            assert error_of(http.post(path, json=body)) == (503, "SHUTTING_DOWN")


def test_a_kernel_that_is_being_started_when_the_server_stops_is_not_left_behind(serve: Serve) -> None:
    """Whoever waits for it is told, and its process is gone."""
    server = serve(auth=False)
    answers: list[httpx.Response] = []
    before = keepers()

    def start() -> None:
        with server.http() as http:
            answers.append(http.post("/api/kernels"))

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    until(lambda: server.on_loop(lambda: server.context.kernels._opening))
    server.stop()
    thread.join(20)
    assert [error_of(answer) for answer in answers] == [(503, "SHUTTING_DOWN")]
    assert keepers() == before


def test_a_second_ctrl_c_leaves_kernels_to_their_keepers(serve: Serve, tmp_path: Path) -> None:
    """A kernel that does not end holds nobody up; its keeper ends it when its lease is over."""
    # Both leases: it may be suspended before it has said idle.
    server = serve(auth=False, shutdown_s=60, kernel_keep_s=1, kernel_busy_keep_s=1)
    with server.http() as http:
        kernel = started(http)
        pid = http.get(f"/api/kernels/{kernel}").json()["pid"]
    psutil.Process(pid).suspend()
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    until(lambda: server.context.draining)
    assert server.loop is not None
    server.loop.call_soon_threadsafe(server.context.stop_draining)
    stopping.join(15)
    assert not stopping.is_alive()
    until(lambda: not is_running(pid))
