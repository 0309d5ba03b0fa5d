"""docs/howto/prometheus.md, its rules and its board: read by Prometheus' own tools, and held against a real server."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.markdown import DOCS, code_spans, rows, section
from tests.servers import RunningServer

HOWTO = DOCS / "howto"
RULES = HOWTO / "alerts.yml"
CASES = Path(__file__).with_name("alerts.test.yml")
PROMTOOL_MAX_S = 60

needs_prometheus = pytest.mark.skipif(
    shutil.which("promtool") is None or shutil.which("prometheus") is None,
    reason="there is no Prometheus; to run this test: apt-get install prometheus",
)


def alerts() -> list[dict[str, Any]]:
    [group] = yaml.safe_load(RULES.read_text())["groups"]
    return list(group["rules"])


def panels() -> list[dict[str, Any]]:
    return list(json.loads((HOWTO / "grafana.json").read_text())["panels"])


def questions() -> Iterator[str]:
    """What the board asks Prometheus, with Grafana's variables filled in."""
    for panel in panels():
        for target in panel.get("targets", []):
            yield target["expr"].replace("$instance", ".*").replace("$__rate_interval", "1m")


def promtool(*words: str, directory: Path) -> str:
    done = subprocess.run(
        ["promtool", *words], cwd=directory, capture_output=True, text=True, timeout=PROMTOOL_MAX_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@needs_prometheus
def test_the_guide_does_what_it_shows(read_along: Callable[..., None]) -> None:
    """A real Prometheus scrapes a real server with the guide's files, and its alarm goes off when that stops."""
    here = {"~/himalia/docs": str(DOCS)}
    read_along("howto/prometheus.md", ports=["9090"], here=here, also=[r"@\[[\d.]+\]"])


@needs_prometheus
def test_each_alert_fires_when_it_should(tmp_path: Path) -> None:
    """Promtool plays a story for each alert, and it comes with its words, and only then."""
    shutil.copy(RULES, tmp_path)
    shutil.copy(CASES, tmp_path)
    assert "SUCCESS" in promtool("test", "rules", CASES.name, directory=tmp_path)


def test_each_alert_has_a_story() -> None:
    """None escapes the test above."""
    tried = {
        one["alertname"]
        for case in yaml.safe_load(CASES.read_text())["tests"]
        for one in case["alert_rule_test"]
    }
    assert tried == {rule["alert"] for rule in alerts()}


@needs_prometheus
def test_prometheus_understands_what_the_board_asks(tmp_path: Path) -> None:
    """Each expression is read as that of a recording rule."""
    asked = list(questions())
    rules = [{"record": f"board:{number}", "expr": expr} for number, expr in enumerate(asked)]
    (tmp_path / "board.yml").write_text(yaml.safe_dump({"groups": [{"name": "board", "rules": rules}]}))
    assert f"{len(asked)} rules found" in promtool("check", "rules", "board.yml", directory=tmp_path)


def test_every_metric_that_is_asked_for_exists(server: RunningServer) -> None:
    """A name in the rules or on the board is one that ``/metrics`` of a real server has."""
    with server.http() as http:
        text = http.get("/metrics").text
    known = {
        *re.findall(r"^# TYPE (\S+)", text, re.MULTILINE),
        *re.findall(r"^(himalia_\w+)", text, re.MULTILINE),
    }
    asked = " ".join([*questions(), *(rule["expr"] for rule in alerts())])
    assert set(re.findall(r"\bhimalia_\w+", asked)) <= known


def test_every_metric_is_on_the_board(server: RunningServer) -> None:
    """What can be counted can be seen."""
    with server.http() as http:
        known = set(re.findall(r"^# TYPE (\S+)", http.get("/metrics").text, re.MULTILINE))
    shown = {re.sub("_bucket$", "", name) for name in re.findall(r"\bhimalia_\w+", " ".join(questions()))}
    assert known - shown == {"himalia_commit_seconds_created"}


def test_every_alert_is_in_the_guide() -> None:
    """Who is woken by one finds it."""
    table = rows(section((HOWTO / "prometheus.md").read_text(), "## Alerts"))
    named = [span for cells in table for span in code_spans(cells[0])]
    assert named == [rule["alert"] for rule in alerts()]


def test_no_panel_covers_another() -> None:
    """Each panel of the board has a number and a place of its own."""
    numbers = [panel["id"] for panel in panels()]
    assert len(set(numbers)) == len(numbers)
    for one, other in combinations((panel["gridPos"] for panel in panels()), 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)
