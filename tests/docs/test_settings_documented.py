"""Every setting is in docs/operations.md with its flag, its variable and its real default."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic.fields import FieldInfo

from himalia.log import sqlite_path
from himalia.server.identity import Principal, Right, read_keys
from himalia.settings import Settings
from himalia.spark.tuning import VARIABLE as UNTUNED
from himalia.tls import CERTFILE, KEYFILE, PASSWORD
from tests.docs.markdown import DOCS, ROOT, blocks, code_spans, rows, section
from tests.server.identity.credentials import write_keys

OTHER_VARIABLES = {
    "HIMALIA_URL",
    "HIMALIA_TOKEN",
    "HIMALIA_RUNTIME_DIR",
    UNTUNED,
    CERTFILE,
    KEYFILE,
    PASSWORD,
}
"""Variables that are read elsewhere than in the settings."""


def documented(operations: str) -> dict[str, list[str]]:
    """The cells of each setting's row, by its variable."""
    table = rows(section(operations, "## Settings"))
    return {code_spans(cells[1])[0]: cells for cells in table}


def shown_default(field: FieldInfo) -> str:
    default: Any = field.get_default(call_default_factory=True)
    if default is None or default == []:
        return "-"
    if isinstance(default, bool):
        return "`on`" if default else "`off`"
    return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"


@pytest.mark.parametrize("name", sorted(set(Settings.model_fields) - {"log", "warehouse"}))
def test_a_setting_is_documented_with_its_real_default(operations: str, name: str) -> None:
    """Flag, variable and default in the documents are those of the code."""
    flag, _, default, meaning = documented(operations)[f"HIMALIA_{name.upper()}"]
    assert code_spans(flag)[0] == "--" + name.replace("_", "-")
    assert default == shown_default(Settings.model_fields[name])
    assert meaning


def test_the_service_keeps_log_and_spools_on_disk(operations: str) -> None:
    """Both are in the directory that systemd keeps for it; what is below /run is gone after a reboot."""
    (unit,) = blocks(section(operations, "## As a systemd service"))
    lines = [line.removeprefix("Environment=").split("=", 1) for line in unit.lines if "=" in line]
    settings = {line[0]: line[1] for line in lines if not line[0].startswith("#")}
    state = f"/var/lib/{settings['StateDirectory']}"
    assert settings["HIMALIA_LOG"].startswith(f"sqlite://{state}/")
    assert settings["HIMALIA_RUNTIME_DIR"].startswith(f"{state}/")


@pytest.mark.skipif(sys.platform != "linux", reason="the documented path is Linux's")
def test_the_default_log_is_where_the_document_says(
    operations: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The default of ``log`` depends on the home directory, so it is compared as a path."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    _, _, default, _ = documented(operations)["HIMALIA_LOG"]
    assert sqlite_path(code_spans(default)[0]) == sqlite_path(Settings().log)


@pytest.mark.skipif(sys.platform != "linux", reason="the documented path is Linux's")
def test_the_default_warehouse_is_where_the_document_says(
    operations: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """So does that of ``warehouse``, which lies beside the log."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_DATA_HOME", "HIMALIA_WAREHOUSE"):
        monkeypatch.delenv(name, raising=False)
    _, _, default, _ = documented(operations)["HIMALIA_WAREHOUSE"]
    assert Path(code_spans(default)[0]).expanduser() == Settings().warehouse


def test_no_setting_is_documented_that_does_not_exist(operations: str) -> None:
    """A setting that was removed or renamed goes from the documents too."""
    assert documented(operations).keys() == {f"HIMALIA_{name.upper()}" for name in Settings.model_fields}


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda path: path.name
)
def test_variables_and_settings_that_are_mentioned_exist(path: Path) -> None:
    """Wherever the documents speak of a setting, they call it by its name."""
    known = OTHER_VARIABLES | {f"HIMALIA_{name.upper()}" for name in Settings.model_fields}
    assert set(re.findall(r"\bHIMALIA_[A-Z_]+\b", path.read_text())) <= known


def test_the_keys_file_of_the_document_can_be_loaded(operations: str, tmp_path: Path) -> None:
    """Who copies the example has keys with the rights that it shows."""
    [block] = [block for block in blocks(operations) if block.kind == "toml"]
    path = write_keys(tmp_path / "keys.toml", block.text)
    principals = {key.name: Principal(key.caller, key.rights) for key in read_keys(path)}
    assert principals.keys() == {"shop", "dashboard", "ann", "admin"}
    assert principals["ann"].owns(Right.EXECUTE)
    assert principals["shop"].may(Right.PUBLISH, "orders.eu")
    assert not principals["shop"].may(Right.SUBSCRIBE, "orders.eu")
    assert not principals["dashboard"].may(Right.MANAGE, "orders")
    assert principals["admin"].may(Right.MANAGE, "orders")


def test_every_right_is_documented(protocol: str, operations: str) -> None:
    """A right that can be given is explained."""
    for text in (section(protocol, "## Keys and rights"), section(operations, "## Keys")):
        assert {str(right) for right in Right} <= set(code_spans(text))
