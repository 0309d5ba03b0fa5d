"""Every name that a document imports can be imported: those of today's documents and of the first edition's."""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.docs.markdown import DOCS, ROOT

_IMPORT = re.compile(r"\bfrom (himalia[\w.]*) import (\([^)]*\)|[\w, ]+)")
_RUN = re.compile(r"-m (himalia[\w.]*)|daemon\.module=(himalia[\w.]*)")

FIRST_EDITION = {
    "himalia": [
        *(
            "Client",
            "ClientMessage",
            "CreateTopicRequest",
            "CreateTopicResponse",
            "ErrorCode",
            "HimaliaError",
        ),
        *("Position", "PubSubManager", "Record", "Retention", "ServerMessage", "Subscriber", "SyncClient"),
        "Topic",
    ],
    "himalia.errors": ["TopicNotFound"],
    "himalia.kernels": [
        *("ExecutionResult", "GlobalSubscriber", "IopubBroker", "KernelHost", "ShellClient", "Wire"),
        *("execute_code", "read_connection_file", "send_execute_request", "start_iopub_thread"),
    ],
    "himalia.log": ["open_log"],
    "himalia.pubsub": ["PubSubManager"],
    "himalia.server": ["create_app"],
    "himalia.settings": ["Settings"],
    "himalia.spark.connector.source": ["HimaliaDataSource"],
    "himalia.spark.java": ["find_java"],
    "himalia.spark.pipeline": [
        *(
            "errors",
            "executions",
            "iopub",
            "kernel_health",
            "messages",
            "orphans",
            "requests",
            "topic_activity",
        ),
    ],
    "himalia.spark.run": ["Pipeline"],
    "himalia.spark.session": ["start_session"],
    "himalia.spark.shipping": ["ship"],
    "himalia.tables": ["Tables"],
}
"""What the documents and ``himalia.__all__`` of revision c8cdca2 named."""
FIRST_EDITION_PROGRAMS = {"himalia.spark.daemon", "himalia.spark.shipping"}
"""Modules that they ran, with ``-m`` or as a setting of Spark."""


def documents() -> list[Path]:
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def documented() -> set[tuple[str, str]]:
    """Each import in a document, as module and name."""
    return {
        (module, name)
        for document in documents()
        for module, names in _IMPORT.findall(document.read_text())
        for name in re.findall(r"\w+", names)
        if not module.endswith(".toy")  # shown in docs/architecture.md as something to add
    }


def imported(module: str, name: str) -> object:
    """Return what ``from module import name`` does."""
    try:
        return getattr(import_module(module), name)
    except AttributeError:
        return import_module(f"{module}.{name}")


@pytest.mark.parametrize(("module", "name"), sorted(documented()))
def test_a_name_that_a_document_imports_exists(module: str, name: str) -> None:
    """A reader can copy the line."""
    assert imported(module, name) is not None


@pytest.mark.parametrize(
    ("module", "name"), [(module, name) for module, names in FIRST_EDITION.items() for name in names]
)
def test_a_name_of_the_first_edition_exists(module: str, name: str) -> None:
    """A program that was written by the documents of the first edition still imports what it needs."""
    assert imported(module, name) is not None


def test_a_table_of_the_first_edition_is_still_a_function() -> None:
    """The modules of ``himalia.spark.pipeline`` that held transformations are those of ``himalia.spark.transforms``."""
    for name in FIRST_EDITION["himalia.spark.pipeline"]:
        former = import_module(f"himalia.spark.pipeline.{name}")
        assert former.__file__ == import_module(f"himalia.spark.transforms.{name}").__file__


def test_every_program_that_a_document_runs_exists() -> None:
    """``python -m`` and Spark find the modules that today's documents and the first edition's name."""
    named = {
        module.rstrip(".")
        for document in documents()
        for match in _RUN.findall(document.read_text())
        for module in match
        if module
    }
    assert named
    for module in named | FIRST_EDITION_PROGRAMS:
        assert find_spec(module), module
