"""``python -m tests.docs.table_columns``: write the column tables of docs/tables.md from the schemas in the code."""

from __future__ import annotations

import re

from himalia.spark.pipeline.warehouse import TABLES
from himalia.tables.catalog import TableSchema
from tests.docs.markdown import DOCS

GUIDE = DOCS / "tables.md"


def with_columns(guide: str) -> str:
    """Return the guide with the sections of all tables replaced by generated ones."""
    for schema in TABLES.values():
        section = re.compile(rf"^### {schema.name}\n.*?(?=^##)", re.MULTILINE | re.DOTALL)
        guide, count = section.subn(lambda _, schema=schema: make_section(schema), guide)
        assert count == 1, f"{GUIDE} has {count} sections ### {schema.name}"
    return guide


def make_section(schema: TableSchema) -> str:
    sentence = schema.description[0].upper() + schema.description[1:] + "."
    rows = [f"| `{column.name}` | {column.type} | {column.meaning} |" for column in schema.columns]
    return "\n".join(
        [
            f"### {schema.name}",
            "",
            sentence,
            "",
            "| column | type | what it is |",
            "|---|---|---|",
            *rows,
            "",
            "",
        ]
    )


if __name__ == "__main__":
    GUIDE.write_text(with_columns(GUIDE.read_text()))
