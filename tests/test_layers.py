"""The direction of imports: left never imports right, as docs/architecture.md draws it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "himalia"

VALUES = {"record", "errors", "topics", "token_proof"}
FOUNDATION = VALUES | {
    "settings",
    "local_server",
    "retry",
    "throttle",
    "file_lock",
    "tasks",
    "ndjson",
    "child_process",
}
BROKER = FOUNDATION | {"log", "protocol", "pubsub"}
JUPYTER = VALUES | {"protocol", "jupyter"}
IOPUB = JUPYTER | {"throttle", "iopub"}
KEEPER = IOPUB | FOUNDATION | {"keeper"}
MAY_IMPORT = {
    "record": VALUES,
    "errors": VALUES,
    "topics": VALUES,
    "token_proof": set(),
    "tls": {"errors"},
    "connection_errors": {"errors", "tls"},
    "malloc": set(),
    "retry": {"errors"},
    "throttle": set(),
    "file_lock": set(),
    "tasks": set(),
    "ndjson": set(),
    "child_process": set(),
    "settings": FOUNDATION,
    "local_server": FOUNDATION,
    "log": FOUNDATION | {"log"},
    "pubsub": BROKER,
    "jupyter": JUPYTER,
    "iopub": IOPUB,
    "keeper": KEEPER,
    "kernels": BROKER | KEEPER | {"kernels"},
    "protocol": VALUES | {"protocol"},
    "client": VALUES | {"tls", "connection_errors", "retry", "ndjson", "local_server", "protocol", "client"},
    "spark": VALUES
    | {
        "tls",
        "connection_errors",
        "retry",
        "file_lock",
        "local_server",
        "protocol",
        "client",
        "tables",
        "malloc",
        "spark",
    },
    "tables": VALUES | {"protocol", "tables"},
    "demo": VALUES | {"client", "demo"},
    "server": BROKER | KEEPER | {"kernels", "protocol", "tables", "malloc", "server"},
    "cli": BROKER | KEEPER | {"kernels", "protocol", "client", "spark", "tables", "server", "cli"},
}
"""For each part of the package, the parts it may import. ``from himalia import __version__`` is free."""


class Import(NamedTuple):
    source: str
    target: str
    line: int
    at_run_time: bool
    """Not only for the type checker."""
    at_start: bool
    """When the module is imported, not when a function is called."""


def modules() -> dict[str, ast.Module]:
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = ("himalia", *path.relative_to(SOURCE).with_suffix("").parts)
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = ast.parse(path.read_text(), str(path))
    return found


MODULES = modules()


def imports(source: str) -> Iterator[Import]:
    """Everything of ours that a module imports, at its top, in its functions and for the type checker."""
    yield from _imports_in(source, MODULES[source], at_run_time=True, at_start=True)


def _imports_in(source: str, node: ast.AST, *, at_run_time: bool, at_start: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                if alias.name.partition(".")[0] == "himalia":
                    yield Import(source, alias.name, child.lineno, at_run_time, at_start)
        elif isinstance(child, ast.ImportFrom):
            assert not child.level, f"{source}:{child.lineno} imports relatively"
            if child.module and child.module.partition(".")[0] == "himalia":
                for alias in child.names:
                    whole = f"{child.module}.{alias.name}"
                    target = whole if whole in MODULES else child.module
                    yield Import(source, target, child.lineno, at_run_time, at_start)
        elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            yield from _imports_in(source, child, at_run_time=False, at_start=at_start)
        else:
            in_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from _imports_in(
                source, child, at_run_time=at_run_time, at_start=at_start and not in_function
            )


def part_of(module: str) -> str | None:
    """The layer of a module; None for the package itself."""
    _, _, rest = module.partition(".")
    return rest.partition(".")[0] or None


def test_every_part_of_the_package_has_its_place() -> None:
    """A new module or folder is put into a layer before it is used."""
    parts = {part_of(module) for module in MODULES} - {None}
    assert parts == MAY_IMPORT.keys()


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_only_what_is_to_its_left(module: str) -> None:
    """Left never imports right, not even inside a function or for the type checker."""
    part = part_of(module)
    if part is None:
        return
    wrong = [
        f"line {found.line}: {found.target}"
        for found in imports(module)
        if part_of(found.target) not in (None, *MAY_IMPORT[part])
    ]
    assert not wrong


def test_the_package_itself_imports_nothing() -> None:
    """``import himalia`` loads no part of it; names are looked up when they are asked for."""
    assert not [found for found in imports("himalia") if found.at_run_time]


def test_there_are_no_import_cycles() -> None:
    """No module needs, in order to be imported, a module that needs it."""
    needs = {
        module: {
            found.target
            for found in imports(module)
            if found.at_run_time and found.at_start and found.target != module
        }
        for module in MODULES
    }
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path[path.index(module) :], module))
        if module not in done:
            for needed in sorted(needs[module]):
                visit(needed, (*path, module))
            done.add(module)

    for module in sorted(MODULES):
        visit(module, ())


@pytest.mark.parametrize(
    ("source", "code", "expected"),
    [
        ("at the top", "from himalia.server import app", "himalia.server.app"),
        ("in a function", "def f():\n    import himalia.server.app", "himalia.server.app"),
        (
            "for the type checker",
            "if TYPE_CHECKING:\n    from himalia.server.app import X",
            "himalia.server.app",
        ),
        ("in a try", "try:\n    from himalia import server\nexcept ImportError:\n    pass", "himalia.server"),
    ],
)
def test_imports_are_found_wherever_they_stand(source: str, code: str, expected: str) -> None:
    """The check cannot be got round by moving the import."""
    found = list(_imports_in(source, ast.parse(code), at_run_time=True, at_start=True))
    assert [one.target for one in found] == [expected]
