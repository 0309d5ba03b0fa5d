"""Print the shape of the source tree: sizes, coupling, repetition, and words that CONTRIBUTING.md replaces.

``python -m tests.shape`` measures ``src/himalia``; ``python -m tests.shape DIRECTORY`` measures another tree, such as
an earlier revision. It is information for readers of a change, never a gate: ``make lint`` prints it.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles

DIALECT = re.compile(
    r"\b(?:somebody|nobody|whoever|(?:is|are|was|were|be|been) told|tells? of|told of|says"
    r"|goes on|go on|going on|went on|of its own accord|lets? go|letting go"
    r"|(?:give|gives|gave|given|giving) up|(?:take|takes|took|taken|taking) (?:in|over)"
    r"|ask|asks|asked|asking|heard|last words|put off|puts off|anew|of late|beside"
    r"|all that|what comes|what came|of which|come what may|for ever|unwell|stumbles?"
    r"|(?:in|at) one stroke|in vain|before long|at hand)\b",
    re.IGNORECASE,
)
"""The left column of the word list in CONTRIBUTING.md, without "well", which has other uses."""
PARTICIPLE = re.compile(
    r"_?(?!(?:feed|need|embed|seed|speed|bring|ping|string|ring)(?:_|$))[a-z]+(?:ed|ing)(?:_|$)"
)
DUPLICATE_LINES = 6
PEAKS = 5


@dataclass(frozen=True)
class Function:
    name: str
    lines: int
    arguments: int
    is_verb: bool
    """Not a property or a context manager, which may be named by an adjective."""


@dataclass(frozen=True)
class Class:
    name: str
    methods: int
    attributes: int
    lines: int


@dataclass
class Module:
    name: str
    lines: int
    functions: list[Function] = field(default_factory=list)
    classes: list[Class] = field(default_factory=list)
    imports: set[str] = field(default_factory=set)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("directory", nargs="?", type=Path, default=Path("src/himalia"))
    root = parser.parse_args().directory
    sources = {path: path.read_text() for path in sorted(root.rglob("*.py"))}
    modules = [parse_module(path, root, text) for path, text in sources.items()]
    scripts = [path for path in sorted(root.rglob("*.js")) if "vendor" not in path.parts]
    for line in report(root, modules, sources, scripts):
        print(line)


def report(root: Path, modules: list[Module], sources: dict[Path, str], scripts: list[Path]) -> Iterator[str]:
    functions = [function for module in modules for function in module.functions]
    classes = [item for module in modules for item in module.classes]
    text = [*sources.values(), *(path.read_text() for path in scripts)]
    named = sorted({f.name for f in functions if f.is_verb and PARTICIPLE.match(f.name.rpartition(".")[2])})
    short = [module for module in modules if module.lines < 40 and not module.name.endswith("__init__")]
    lines = sum(module.lines for module in modules)
    yield f"{root}: {len(modules)} Python modules, {lines:,} lines; {len(scripts)} modules of JavaScript"
    yield f"  modules below 40 lines (without __init__)   {len(short)}"
    yield f"  lines of a module     {spread(module.lines for module in modules)}"
    yield f"  lines of a function   {spread(function.lines for function in functions)}"
    yield "  most methods          " + peaks((c.name, c.methods) for c in classes)
    yield "  most attributes       " + peaks((c.name, c.attributes) for c in classes)
    yield "  constructor arguments " + peaks(
        (f.name.removesuffix(".__init__"), f.arguments) for f in functions if f.name.endswith(".__init__")
    )
    yield "  fan-out               " + peaks((module.name, len(module.imports)) for module in modules)
    yield f"  pairs of places that share {DUPLICATE_LINES} lines       {count_duplicates(sources)}"
    yield f"  module names that occur twice            {repeated(m.name.rpartition('.')[2] for m in modules)}"
    yield f"  class names that occur twice             {repeated(item.name for item in classes)}"
    yield f"  functions named by a participle          {len(named)}: {', '.join(named[:PEAKS])}"
    yield f"  words that CONTRIBUTING.md replaces      {sum(len(DIALECT.findall(one)) for one in text)}"


def parse_module(path: Path, root: Path, text: str) -> Module:
    name = ".".join(path.relative_to(root).with_suffix("").parts)
    module = Module(name, text.count("\n"))
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            module.classes.append(measure_class(node))
            module.functions += [measure(item, f"{node.name}.") for item in methods_of(node)]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("himalia"):
            module.imports.add(node.module or "")
    inside = {id(item) for node in ast.walk(tree) if isinstance(node, ast.ClassDef) for item in node.body}
    module.functions += [
        measure(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and id(node) not in inside
    ]
    return module


def methods_of(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]


def measure(node: ast.FunctionDef | ast.AsyncFunctionDef, prefix: str = "") -> Function:
    arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    count = sum(argument.arg not in ("self", "cls") for argument in arguments)
    decorators = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
    is_verb = not decorators & {"property", "cached_property", "contextmanager", "setter"}
    return Function(prefix + node.name, (node.end_lineno or node.lineno) - node.lineno + 1, count, is_verb)


def measure_class(node: ast.ClassDef) -> Class:
    assigned = {
        target.attr
        for item in ast.walk(node)
        if isinstance(item, ast.Assign | ast.AnnAssign)
        for target in (item.targets if isinstance(item, ast.Assign) else [item.target])
        if isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Name)
        and target.value.id == "self"
    }
    lines = (node.end_lineno or node.lineno) - node.lineno + 1
    return Class(node.name, len(methods_of(node)), len(assigned), lines)


def spread(values: Iterable[int]) -> str:
    ordered = sorted(values)
    cuts = quantiles(ordered, n=10)
    return f"median {cuts[4]:.0f}, p90 {cuts[8]:.0f}, most {ordered[-1]}"


def peaks(values: Iterable[tuple[str, int]]) -> str:
    highest = sorted(values, key=lambda pair: -pair[1])[:PEAKS]
    return ", ".join(f"{name} {count}" for name, count in highest)


def repeated(names: Iterable[str]) -> str:
    counts = {name: n for name, n in Counter(names).items() if n > 1 and not name.startswith("__")}
    most = sorted(counts.items(), key=lambda pair: -pair[1])[:12]
    return f"{len(counts)}: " + ", ".join(f"{name} x{count}" for name, count in most)


def count_duplicates(sources: dict[Path, str]) -> int:
    """Count the pairs of modules that share a run of DUPLICATE_LINES equal lines, imports and punctuation left out."""
    places: dict[tuple[str, ...], set[Path]] = defaultdict(set)
    for path, text in sources.items():
        lines = [
            line.strip()
            for line in text.splitlines()
            if re.search(r"\w", line) and not re.match(r"\s*(#|from |import )", line)
        ]
        for start in range(len(lines) - DUPLICATE_LINES + 1):
            places[tuple(lines[start : start + DUPLICATE_LINES])].add(path)
    return len(
        {
            (one, other)
            for found in places.values()
            for one in found
            for other in found
            if str(one) < str(other)
        }
    )


if __name__ == "__main__":
    main()
