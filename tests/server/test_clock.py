"""A server on a machine whose clock jumps."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from himalia.log.clock import SystemTime
from himalia.record import now_us, parse_ts
from tests.cli.command import himalia
from tests.server.raw_clients import until
from tests.servers import RunningServer

Serve = Callable[..., RunningServer]
DAY_US = 86_400 * 1_000_000
KEYS = """
[keys.admin]
key = "admin-0123456789-0123456789"
manage = [">"]

[keys.shop]
key = "shop-0123456789-0123456789"
manage = ["orders"]
"""


@pytest.fixture
def jump(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the wall clock of this machine, as the log sees it, so many days ahead."""

    def set_ahead(days: float) -> None:
        monkeypatch.setattr(SystemTime, "wall_us", lambda _: now_us() + round(days * DAY_US))

    return set_ahead


def test_a_jump_is_named_and_confirmed(serve: Serve, jump: Callable[[float], None]) -> None:
    """With a clock that jumped the server stays well (200), keeps its records, dates new ones by what passed and
    says so; after ``himalia clock confirm`` it dates them by the clock."""
    server = serve(auth=False, retention_age_s=3600)
    server.create("orders")
    with server.http() as http:
        first = http.post("/topics/orders/messages", json={"payload": 1})
        assert first.status_code == 200
        assert "warnings" not in http.get("/health").json()
        jump(8)
        until(lambda: "warnings" in http.get("/health").json())
        answer = http.get("/health")
        assert (answer.status_code, answer.json()["status"]) == (200, "ok")
        [warning] = answer.json()["warnings"]
        assert "8 days ahead" in warning or "7 days ahead" in warning
        assert "himalia_log_warnings 1.0" in http.get("/metrics").text
        http.post("/topics/orders/messages", json={"payload": 2}).raise_for_status()

        done = himalia("clock", "confirm", "--url", server.url, "--json")
        assert done.returncode == 0
        assert json.loads(done.stdout) == {"status": "confirmed", "warning": warning}
        done = himalia("clock", "confirm", "--url", server.url)
        assert (done.returncode, done.stdout.startswith("there is nothing to confirm")) == (0, True)
        assert "warnings" not in http.get("/health").json()
        http.post("/topics/orders/messages", json={"payload": 3}).raise_for_status()
        records = http.get("/topics/orders/messages").json()["messages"]
        days = [(parse_ts(record["ts"]) - now_us()) / DAY_US for record in records]
        assert [round(day) for day in days] == [0, 0, 8]
    [confirmed] = server.audit_trail("clock_confirmed")
    assert confirmed == {"event": "clock_confirmed", "caller": "anonymous", "warning": warning}


def test_confirming_takes_the_right_to_manage_everything(serve: Serve, tmp_path: Path) -> None:
    """Who may manage a topic may not confirm the clock by which all topics are kept."""
    keys = tmp_path / "keys.toml"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    server = serve(keys_file=keys)
    for name, status in (("shop", 403), ("admin", 200)):
        with server.http(headers={"X-API-Key": f"{name}-0123456789-0123456789"}) as http:
            answer = http.post("/clock/confirm")
            assert answer.status_code == status
    with server.http() as http:
        assert http.post("/clock/confirm").status_code == 401
