"""A new log, table, command or section of the page is one file and one line, as docs/architecture.md shows.

The toys in ``tests/toys`` are put into a copy of the package, each with one line that registers it, and used for real.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import expect

from himalia.tables import Tables
from tests.cli.command import ServeCommand, assert_sentence, himalia
from tests.docs.markdown import DOCS, ROOT, blocks
from tests.page.browser import DEADLINE_MS, Complaints, running_browser
from tests.servers import RunningServer
from tests.spark.conftest import QUICK

SOURCE = ROOT / "src" / "himalia"
TOYS = Path(__file__).parent / "toys"
BROWSER_WITHIN_S = 120.0
SPARK_WITHIN_S = 250.0


class Extension(NamedTuple):
    toy: str
    """A file of ``tests/toys``."""
    file: str
    """Where it goes in the package."""
    registry: str
    """The file that registers it."""
    line: str
    after: str
    """The line of the registry behind which it goes."""


EXTENSIONS = {
    "log": Extension(
        "log.py",
        "log/toy.py",
        "log/__init__.py",
        '    "toy": LogKind("himalia.log.toy", "toy://name (lost on restart)"),\n',
        '    "memory": LogKind("himalia.log.memory", "memory:// (lost on restart)"),\n',
    ),
    "table": Extension(
        "table.py",
        "spark/transforms/toy.py",
        "spark/pipeline/warehouse.py",
        '    "himalia.spark.transforms.toy",\n',
        '    "himalia.spark.transforms.errors",\n',
    ),
    "command": Extension(
        "command.py", "cli/commands/toy.py", "cli/lazy.py", '    "toy",\n', '    "restore",\n'
    ),
    "section": Extension(
        "section.js",
        "page/views/toy.js",
        "page/sections.js",
        'import "./views/toy.js";\n',
        'import "./views/system.js";\n',
    ),
}


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a program that imports a copy of the package with the toys in it."""
    root = tmp_path_factory.mktemp("copy")
    package = root / "himalia"
    shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
    for extension in EXTENSIONS.values():
        shutil.copy(TOYS / extension.toy, package / extension.file)
        registry = package / extension.registry
        text = registry.read_text()
        assert text.count(extension.after) == 1, f"{extension.registry} has no line {extension.after!r}"
        registry.write_text(text.replace(extension.after, extension.after + extension.line))
    return {"PYTHONPATH": str(root)}


def test_the_copy_is_what_runs(env: dict[str, str]) -> None:
    """The other tests mean the copy: it is imported before the installed package."""
    program = "import himalia; print(himalia.__file__)"
    output = subprocess.check_output([sys.executable, "-c", program], env=os.environ | env, text=True)
    assert output.strip() == f"{env['PYTHONPATH']}/himalia/__init__.py"


@pytest.mark.parametrize("kind", EXTENSIONS)
def test_the_document_shows_it(kind: str) -> None:
    """docs/architecture.md has the line, and where it goes; at most five lines for each."""
    file, registry, line = EXTENSIONS[kind].file, EXTENSIONS[kind].registry, EXTENSIONS[kind].line
    document = (DOCS / "architecture.md").read_text()
    [example] = [
        block for block in blocks(document) if f"# src/himalia/{file}" in block.text.replace("//", "#")
    ]
    assert f"src/himalia/{registry}" in example.text
    assert line.rstrip() in example.lines
    assert len(example.lines) <= 5


@pytest.mark.slow
def test_a_log(env: dict[str, str], tmp_path: Path) -> None:
    """A log of a new kind is opened by its URL and passes the conformance suite, here the part of appending."""
    plugin = "from tests.log import backends\nbackends.KINDS = ('toy',)\n"
    (tmp_path / "toy_backend.py").write_text(plugin)
    path = f"{env['PYTHONPATH']}{os.pathsep}{tmp_path}{os.pathsep}{ROOT}"
    suite = "tests/log/test_conformance.py::TestAppendingAndReading"
    command = [sys.executable, "-m", "pytest", "-p", "toy_backend", "-p", "no:cacheprovider", suite]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
    assert "passed" in done.stdout or "[100%]" in done.stdout
    assert "[toy]" in _collected(command, path)
    refused = himalia("serve", "--log", "gibberish", env=env)
    assert_sentence(refused, 1, "memory:// (lost on restart)", "toy://name (lost on restart)")


def _collected(command: list[str], path: str) -> str:
    environment = os.environ | {"PYTHONPATH": path}
    return subprocess.check_output([*command, "--collect-only"], cwd=ROOT, env=environment, text=True)


def test_a_command(env: dict[str, str]) -> None:
    """A command runs, has its own help, and is listed in the help of the whole."""
    assert himalia("toy", "hello", env=env).stdout == "hello hello\n"
    assert "Usage: himalia toy [OPTIONS] " in himalia("toy", "--help", env=env).stdout
    assert "Print a word twice." in himalia("--help", env=env).stdout


@pytest.mark.slow
def test_a_section_of_the_page(env: dict[str, str], tmp_path: Path) -> None:
    """A section is in the bar, has an address and a key, and shows what the server has."""
    flags = ["--port", "0", "--no-auth", "--no-kernels", "--log", f"sqlite://{tmp_path}/log.db"]
    with ServeCommand(*flags, env=env, deadline_s=BROWSER_WITHIN_S) as server, running_browser() as browser:
        himalia("topics", "create", "orders", env={"HIMALIA_URL": server.url})
        page = browser.new_page()
        page.set_default_timeout(DEADLINE_MS)
        complaints = Complaints(page)
        page.goto(server.url)
        page.get_by_role("navigation").get_by_role("link", name="Toy").click()
        expect(page.get_by_role("heading", name="Toy")).to_be_visible(timeout=DEADLINE_MS)
        expect(page.get_by_text("1 topic")).to_be_visible(timeout=DEADLINE_MS)
        assert page.url.endswith("#/toy")
        page.goto(f"{server.url}/#/topics")
        page.get_by_role("heading", name="Topics").wait_for()
        page.keyboard.press("g")
        page.keyboard.press("y")
        page.get_by_role("heading", name="Toy").wait_for()
        assert complaints.found == []


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_table(env: dict[str, str], server: RunningServer, tmp_path: Path) -> None:
    """The pipeline creates a table and fills it; readers without Spark describe it, with the meaning of its columns."""
    warehouse = tmp_path / "warehouse"
    options = " ".join(f'--conf "{name}={value}"' for name, value in QUICK.items())
    spark = env | {"PYSPARK_SUBMIT_ARGS": f"{options} pyspark-shell"}
    at, where = ["--url", server.url], ["--warehouse", str(warehouse)]
    for number in ("1", "2"):
        himalia("publish", "orders", number, "--create", *at)
    run = ["pipeline", "run", "--once", "--no-feedback", "--master", "local[2]", *where, *at]
    done = himalia(*run, env=spark, deadline_s=SPARK_WITHIN_S)
    assert done.returncode == 0, done.stderr
    [table] = [table for table in Tables(warehouse).describe() if table.name == "toy"]
    assert table.description == "how many records a topic got in an hour"
    assert [(column.name, column.type, column.description) for column in table.columns] == [
        ("topic", "string", "the topic"),
        ("records", "bigint", "the number of its records"),
        ("hour", "string", "the hour as text"),
    ]
    rows = Tables(warehouse).sql("select topic, sum(records) as records from toy group by topic").rows()
    assert {"topic": "orders", "records": 2} in rows
