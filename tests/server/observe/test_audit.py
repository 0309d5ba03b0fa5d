"""The audit trail: what is recorded, who may read it, and that recording never gets in the way."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import httpx
import pytest

from himalia.errors import ConfigurationError, LogFull
from himalia.log import open_log
from himalia.log.api import Appended, Batch
from himalia.log.memory import MemoryLog
from himalia.record import Draft, Retention
from himalia.server.identity import failed_attempts
from himalia.server.identity.failed_attempts import FailedAttempts, address_of
from himalia.server.observe import audit as module
from himalia.server.observe.audit import Audit, AuditEvent
from himalia.topics import AUDIT_TOPIC, matches
from tests.servers import RunningServer, ask, hear, say

Serve = Callable[..., RunningServer]

KEYS = """
[keys.admin]
key = "admin-0123456789-0123456789"
publish = [">"]
subscribe = [">"]
manage = [">"]
execute = [">"]

[keys.auditor]
key = "auditor-0123456789-0123456789"
manage = ["audit.events"]

[keys.idle]
key = "idle-0123456789-0123456789"
subscribe = [">"]
limits = { queries = 0 }
"""
IDLE = {"X-API-Key": "idle-0123456789-0123456789"}
ADMIN = {"X-API-Key": "admin-0123456789-0123456789"}
AUDITOR = {"X-API-Key": "auditor-0123456789-0123456789"}


@pytest.fixture(scope="module")
def audited(serve_all: Serve, tmp_path_factory: pytest.TempPathFactory) -> RunningServer:
    keys = tmp_path_factory.mktemp("keys") / "keys.toml"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    return serve_all(keys_file=keys, kernels=False)


@pytest.fixture
def admin(audited: RunningServer) -> Iterator[httpx.Client]:
    with audited.http(headers=ADMIN) as http:
        yield http


@pytest.fixture
def auditor(audited: RunningServer) -> Iterator[httpx.Client]:
    with audited.http(headers=AUDITOR) as http:
        yield http


def trail(http: httpx.Client, server: RunningServer) -> list[dict[str, Any]]:
    """All that was recorded so far: waits until the queue is empty."""
    server.wait_for_audit()
    answer = http.get(f"/topics/{AUDIT_TOPIC}/messages", params={"limit": 100_000})
    assert answer.status_code == 200, answer.text
    return [one["message"]["payload"] for one in answer.json()["messages"]]


def end_minutes(server: RunningServer) -> None:
    """As if a minute had passed since each event that is being counted."""
    for repeated in list(server.context.audit._repeats):
        server.context.audit._end_minute(repeated)


# What is recorded


def test_a_topic_that_is_created_or_deleted_is_recorded_with_its_caller(
    audited: RunningServer, admin: httpx.Client, auditor: httpx.Client
) -> None:
    """One record for each, with the caller's qualified name."""
    admin.post("/topics", json={"name": "orders.audited"}).raise_for_status()
    admin.post("/topics/orders.audited/messages", json={"payload": 1}).raise_for_status()
    admin.delete("/topics/orders.audited").raise_for_status()
    found = [one for one in trail(auditor, audited) if one.get("topic") == "orders.audited"]
    assert [(one["event"], one["caller"]) for one in found] == [
        ("topic_created", "key:admin"),
        ("topic_deleted", "key:admin"),
    ]
    assert found[1]["records"] == 1
    assert all(one["at"].endswith("Z") for one in found)


def test_signing_in_is_recorded_with_the_address(audited: RunningServer, auditor: httpx.Client) -> None:
    """Who opened the page, and from where."""
    with audited.http() as http:
        assert http.get("/", params={"token": ADMIN["X-API-Key"]}).status_code == 303
    last = trail(auditor, audited)[-1]
    assert (last["event"], last["caller"], last["address"]) == ("signed_in", "key:admin", "127.0.0.1")


def test_a_repeated_query_of_a_table_is_counted(
    audited: RunningServer, admin: httpx.Client, auditor: httpx.Client
) -> None:
    """The same query again within a minute adds to a count, so that a page that polls does not fill the trail."""
    for where in ("topic = 'a'", "topic = 'a'", "topic = 'b'", "topic = 'a'"):
        admin.get("/tables/messages", params={"where": where})

    def counted() -> dict[str, int]:
        return {
            dict(fields)["where"]: count for (_, _, fields), count in audited.context.audit._repeats.items()
        }

    found = [one for one in trail(auditor, audited) if one["event"] == "table_queried"]
    assert [(one["caller"], one["table"], one["where"]) for one in found] == [
        ("key:admin", "messages", "topic = 'a'"),
        ("key:admin", "messages", "topic = 'b'"),
    ]
    assert audited.on_loop(counted) == {"topic = 'a'": 2, "topic = 'b'": 0}

    audited.on_loop(lambda: end_minutes(audited))
    last = trail(auditor, audited)[-1]
    assert (last["event"], last["where"], last["count"]) == ("table_queried", "topic = 'a'", 2)


def queries(http: httpx.Client, server: RunningServer, caller: str) -> list[dict[str, Any]]:
    return [one for one in trail(http, server) if (one["event"], one["caller"]) == ("table_queried", caller)]


def test_a_caller_cannot_fill_the_trail_with_queries(
    audited: RunningServer, admin: httpx.Client, auditor: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond so many different ones within a minute the trail has only how many there were."""
    monkeypatch.setattr(module, "REPEATS_OF_CALLER_MAX", 5)
    before = len(queries(auditor, audited, "key:admin"))
    for number in range(8):
        admin.get("/tables/messages", params={"where": f"topic = 'many{number}'"})
    audited.on_loop(lambda: end_minutes(audited))
    *single, rest = queries(auditor, audited, "key:admin")[before:]
    assert len(single) <= 5 and set(rest) == {"event", "caller", "at", "count"}
    assert len(single) + rest["count"] == 8


def test_a_long_condition_is_shortened_in_the_trail(
    audited: RunningServer, admin: httpx.Client, auditor: httpx.Client
) -> None:
    """Enough to know it by."""
    audited.on_loop(lambda: end_minutes(audited))
    admin.get("/tables/messages", params={"where": "topic = '" + "x" * 5000 + "'"})
    assert len(queries(auditor, audited, "key:admin")[-1]["where"]) == 203


def test_a_query_that_never_ran_is_not_recorded(audited: RunningServer, auditor: httpx.Client) -> None:
    """It was wrong in itself, or had no slot: nothing was read."""
    with audited.http(headers=IDLE) as http:
        assert http.get("/tables/messages").status_code == 429
        assert http.get("/tables/messages", params={"limit": -1}).status_code == 422
    assert queries(auditor, audited, "key:idle") == []


# Who may read it


def test_no_wildcard_reaches_the_trail() -> None:
    """A pattern covers it only if its first segment names it."""
    assert not any(matches(pattern, AUDIT_TOPIC) for pattern in (">", "*.events", "*.>", "*.*"))
    assert all(matches(pattern, AUDIT_TOPIC) for pattern in (AUDIT_TOPIC, "audit.*", "audit.>"))
    assert matches(">", "audit.orders") and matches("*.events", "orders.events")


def test_every_right_on_everything_does_not_show_it(audited: RunningServer, admin: httpx.Client) -> None:
    """A key with every right on '>' finds it in no list, and is refused by name."""
    assert AUDIT_TOPIC not in admin.get("/topics").text
    assert AUDIT_TOPIC not in admin.get("/stats").text
    assert AUDIT_TOPIC not in admin.get("/metrics").text
    for call in ("messages", "events"):
        answer = admin.get(f"/topics/{AUDIT_TOPIC}/{call}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "FORBIDDEN")
        assert "manage on 'audit.events'" in answer.json()["error"]["message"]


async def test_a_subscription_to_everything_does_not_show_it(audited: RunningServer) -> None:
    """Neither as a topic that is there nor as records, though its caller may do everything else."""
    async with audited.connect(additional_headers=ADMIN) as ws:
        for pattern in (">", "*.events", "audit.>", "audit.*"):
            ack = await ask(ws, type="subscribe", topic=pattern, client_id=pattern, last_n=100)
            assert AUDIT_TOPIC not in ack["topics"], pattern
        refused = await ask(ws, type="subscribe", topic=AUDIT_TOPIC, client_id="name")
        assert refused["error"]["code"] == "FORBIDDEN"
        audited.on_loop(lambda: audited.context.audit.record(AuditEvent.SIGNED_OUT, "key:admin"))
        await say(ws, type="publish", topic="nowhere", request_id="last", message={"id": "x", "payload": 1})
        while (message := await hear(ws)).get("request_id") != "last":
            assert message.get("topic") != AUDIT_TOPIC


async def test_the_trail_is_followed_by_its_name(audited: RunningServer) -> None:
    """With manage on it, and nothing else, it is a topic like any other to read."""
    async with audited.connect(additional_headers=AUDITOR) as ws:
        for pattern in (AUDIT_TOPIC, "audit.>"):
            assert (await ask(ws, type="subscribe", topic=pattern, client_id=pattern))["type"] == "ack"
        async with httpx.AsyncClient(base_url=audited.url, headers=ADMIN) as http:
            assert "audit." not in (await http.get("/stats")).text
        audited.on_loop(lambda: audited.context.audit.record(AuditEvent.SIGNED_OUT, "key:admin"))
        for _ in range(2):
            event = await hear(ws)
            assert event["message"]["payload"]["event"] == "signed_out"
            assert event["message"]["headers"] == {
                "publisher": "server",
                "caller": "key:admin",
                "event": "signed_out",
                "audit": "1",
            }


def test_the_token_may_read_it(serve: Serve) -> None:
    """Without a keys file the token's holder is the administrator."""
    server = serve(kernels=False)
    server.create("orders")
    with server.http(headers=server.headers) as http:
        assert [(one["event"], one["caller"]) for one in trail(http, server)] == [("topic_created", "token")]
        assert [one["name"] for one in http.get("/topics").json()["topics"]] == ["orders"]
        assert http.get("/health").json()["topics"] == 1


@pytest.mark.parametrize("headers", [ADMIN, AUDITOR], ids=["admin", "auditor"])
def test_nobody_writes_creates_or_deletes_it(audited: RunningServer, headers: dict[str, str]) -> None:
    """Reserved: only the server appends to it, and only retention removes from it."""
    with audited.http(headers=headers) as http:
        for answer in (
            http.post(f"/topics/{AUDIT_TOPIC}/messages", json={"payload": {"event": "code_run"}}),
            http.post("/topics", json={"name": AUDIT_TOPIC}),
            http.delete(f"/topics/{AUDIT_TOPIC}"),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "FORBIDDEN"), (
                answer.request.url
            )


def test_it_takes_no_room_from_topics_max(serve: Serve) -> None:
    """The server's own topic is not one of those that the setting allows, and is there when all of them are."""
    server = serve(auth=False, kernels=False, topics_max=1)
    server.create("orders")
    with server.http() as http:
        refused = http.post("/topics", json={"name": "more"})
        assert refused.json()["error"]["code"] == "TOO_MANY_TOPICS"
        assert "holds 1 topics" in refused.json()["error"]["message"]
        assert len(trail(http, server)) == 1


# A topic of that name that a user made


async def put_topic(path: Path, *headers: bytes, age_s: float = 0) -> None:
    """With an age, it is left when retention has removed all that it held."""
    log = open_log(f"sqlite://{path}")
    await log.open()
    await log.create(AUDIT_TOPIC, Retention(count=1, age_s=age_s))
    for each in headers:
        await log.append(Batch(AUDIT_TOPIC, [Draft(str(uuid4()), b"1", each)]))
    while age_s and (info := await log.info(AUDIT_TOPIC)).first < info.end:
        await asyncio.sleep(0.01)
    await log.close()


@pytest.mark.parametrize(
    "headers",
    [
        b'{"publisher":"shop"}',
        b'{"publisher":"shop","audit":"1","event":"signed_in"}',
        b'{"publisher":"server","audit":"1","event":"sold"}',
    ],
)
def test_a_topic_of_the_users_own_is_refused_at_start(serve: Serve, tmp_path: Path, headers: bytes) -> None:
    """Nothing is appended to it, and the sentence tells the command that renames it."""
    asyncio.run(put_topic(tmp_path / "log.db", headers))
    command = f"himalia topics rename {AUDIT_TOPIC} NEW-NAME --log sqlite://{tmp_path}/log.db"
    with pytest.raises(ConfigurationError, match=re.escape(command)):
        serve(auth=False, kernels=False)


@pytest.mark.parametrize("count", [0, 2])
def test_an_empty_topic_of_that_name_is_replaced(serve: Serve, tmp_path: Path, count: int) -> None:
    """It holds nothing of anybody's any more; the retention of its maker would remove what is recorded."""
    asyncio.run(put_topic(tmp_path / "log.db", *count * [b'{"publisher":"shop"}'], age_s=0.01))
    server = serve(auth=False, kernels=False)
    server.create("one", "two")
    with server.http() as http:
        assert [one["topic"] for one in trail(http, server)] == ["one", "two"]


def test_the_trail_is_continued_after_a_restart(serve: Serve) -> None:
    """The server knows its own topic again."""
    first = serve(auth=False, kernels=False)
    first.create("one")
    first.stop()
    second = serve(auth=False, kernels=False)
    second.create("two")
    with second.http() as http:
        assert [one["topic"] for one in trail(http, second)] == ["one", "two"]


def test_its_retention_is_its_own(serve: Serve) -> None:
    """What other topics lose after seven days, or after a few records, the trail keeps."""
    server = serve(
        auth=False, kernels=False, retention_age_s=1, retention_count=1, audit_retention_bytes=5000
    )
    info = asyncio.run_coroutine_threadsafe(server.context.log.info(AUDIT_TOPIC), server.loop).result(20)  # type: ignore[arg-type]
    assert info.retention == Retention(age_s=90 * 86400, bytes=5000, count=0)


# Recording never gets in the way


class FullLog(MemoryLog):
    """Stores nothing while ``is_full``."""

    is_full = True

    def append(self, batch: Batch) -> asyncio.Future[Appended]:
        if not self.is_full:
            return super().append(batch)
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        future.set_exception(LogFull("no space"))
        return future


async def test_drops_are_counted_logged_and_recorded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """While the log cannot store, recording neither waits nor fails; what is lost is told when it can again."""
    monkeypatch.setattr(module, "QUEUE_MAX", 3)
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    log = FullLog()
    await log.open()
    audit = Audit(log, Retention())
    await audit.open()
    with caplog.at_level(logging.ERROR, "himalia.audit"):
        for number in range(10):
            audit.record(AuditEvent.CODE_RUN, "key:ann", number=number)
            await asyncio.sleep(0)
        assert audit.dropped == 7
        assert [record.message for record in caplog.records] == [
            "dropping audit records: 3 are waiting for the log"
        ]
        log.is_full = False
        await asyncio.wait_for(audit._idle.wait(), 10)
    stored = [json.loads(one.payload) for one in (await log.read(AUDIT_TOPIC, 0, limit=100)).records]
    assert [one.get("number") for one in stored] == [0, 1, 2, None]
    assert (stored[3]["event"], stored[3]["caller"], stored[3]["count"]) == ("records_dropped", "server", 7)
    assert caplog.records[-1].message == "7 audit records were dropped"
    await audit.close()
    await log.close()


async def test_whatever_is_recorded_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A field that is no text, far too long or no JSON at all does not fail the action that is recorded."""
    monkeypatch.setattr(module, "CLOSE_WITHIN_S", 0.1)
    log = MemoryLog()
    await log.open()
    audit = Audit(log, Retention())
    await audit.open()
    audit.record(AuditEvent.CODE_RUN, "key:ann", text="x" * 10_000, half="\ud800", none=None)
    audit.record(AuditEvent.CODE_RUN, "key:ann", strange=object())
    await audit.close()
    stored, gap = [json.loads(one.payload) for one in (await log.read(AUDIT_TOPIC, 0, limit=100)).records]
    assert (len(stored["text"]), stored["half"]) == (1003, "?")
    assert "none" not in stored
    assert (gap["event"], gap["count"], audit.dropped) == ("records_dropped", 1, 1)
    await log.close()


# Wrong keys


class Recorded:
    """Stands where the audit trail stands."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def record(self, event: AuditEvent, caller: str, /, **fields: Any) -> None:
        self.records.append({"event": event, **fields})


def scope_of(address: str) -> dict[str, Any]:
    return {"type": "http", "client": (address, 1234)}


def test_wrong_keys_are_recorded_and_logged_once_a_minute(
    audited: RunningServer, auditor: httpx.Client, caplog: pytest.LogCaptureFixture
) -> None:
    """The first at once, the others of that minute as one record; a request without any key is none of them."""
    before = len(trail(auditor, audited))
    with caplog.at_level(logging.WARNING, "himalia.audit"), audited.http() as http:
        for number in range(8):
            assert http.get("/topics", headers={"X-API-Key": f"wrong-{number}"}).status_code == 401
        assert http.get("/topics").status_code == 401
        audited.on_loop(lambda: audited.context.failed_attempts._end_period("127.0.0.1"))
    found = trail(auditor, audited)[before:]
    assert [(one["event"], one["caller"], one["address"], one["count"]) for one in found] == [
        ("key_refused", "", "127.0.0.1", 1),
        ("key_refused", "", "127.0.0.1", 7),
    ]
    assert [record.message for record in caplog.records] == [
        "refused a wrong or expired key or session from 127.0.0.1",
        "refused 7 wrong or expired keys or sessions from 127.0.0.1",
    ]
    assert "wrong-" not in json.dumps(found)


def test_an_unknown_session_counts_as_a_wrong_key(audited: RunningServer) -> None:
    """It is recorded and slowed down with them, and counted by itself."""
    audited.on_loop(lambda: audited.context.failed_attempts._end_period("127.0.0.1"))
    cookie = {f"himalia_session_{audited.port}": "no-session-of-this-server"}
    with audited.http(cookies=cookie) as http:
        for _ in range(3):
            assert http.get("/topics").status_code == 401
    audited.on_loop(audited.context.failed_attempts.close)
    assert [one["count"] for one in audited.audit_trail("key_refused")[-2:]] == [1, 2]
    with audited.http(headers=ADMIN) as http:
        assert (
            'himalia_authentication_failures_total{reason="unknown_session"} 3.0' in http.get("/metrics").text
        )


async def test_many_wrong_keys_are_answered_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """After ten within a minute each answer waits; another address does not, and neither does a right key."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    # In this module alone: servers of other tests run in this process, and sleep too.
    patched = SimpleNamespace(sleep=sleep, get_running_loop=asyncio.get_running_loop)
    monkeypatch.setattr(failed_attempts, "asyncio", patched)
    refused = FailedAttempts(Recorded(), 1.0)  # type: ignore[arg-type]
    for _ in range(15):
        await refused.count(scope_of("192.0.2.1"))
    await refused.count(scope_of("192.0.2.2"))
    assert waits == [1.0] * 5


async def test_the_addresses_of_wrong_keys_are_bounded_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attack from very many addresses costs neither memory nor a record for each."""
    monkeypatch.setattr(failed_attempts, "ADDRESSES_MAX", 3)
    recorded = Recorded()
    refused = FailedAttempts(recorded, 0)  # type: ignore[arg-type]
    for number in range(100):
        await refused.count(scope_of(f"192.0.2.{number}"))
    assert len(refused._attempts) == 4
    assert [one["address"] for one in recorded.records] == ["192.0.2.0", "192.0.2.1", "192.0.2.2", "others"]
    for address in list(refused._attempts):
        refused._end_period(address)
    assert recorded.records[-1] == {"event": "key_refused", "address": "others", "count": 96}
    refused._end_period("others")
    assert not refused._attempts


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::1", "::1"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("fe80::1%eth0", "fe80::/64"),
        ("/run/himalia.sock", "/run/himalia.sock"),
    ],
)
def test_an_address_of_ipv6_is_its_network(address: str, shown: str) -> None:
    """One host has 2^64 addresses of IPv6; they count as one."""
    assert address_of(scope_of(address)) == shown


def test_a_peer_without_an_address_is_unknown() -> None:
    """A server behind a socket file has no address to tell."""
    assert address_of({"type": "http", "client": None}) == "unknown"
