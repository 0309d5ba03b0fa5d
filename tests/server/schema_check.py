"""Compares JSON with the schema of an OpenAPI or AsyncAPI document, more strictly than JSON Schema does.

An object must not have a field that its schema does not name: JSON Schema allows it, and a document that has fallen
behind the server would go unnoticed.
"""

from __future__ import annotations

from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}


class SchemaCheck:
    """The schemas of one document."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document

    def resolve(self, node: dict[str, Any]) -> dict[str, Any]:
        """Follow references until there is none."""
        while "$ref" in node:
            found: Any = self._document
            for part in node["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            node = found
        return node

    def problems(self, schema: dict[str, Any], value: Any, at: str = "$") -> list[str]:
        """Return how a value differs from its schema, each with its place; empty if it does not."""
        schema = self.resolve(schema)
        if "allOf" in schema:
            return [problem for part in schema["allOf"] for problem in self.problems(part, value, at)]
        if "anyOf" in schema:
            choices = [self.problems(choice, value, at) for choice in schema["anyOf"]]
            return [] if [] in choices else min(choices, key=len)
        kind = schema.get("type")
        if kind is not None and not _is_a(kind, value):
            return [f"{at} is {value!r}, not a {kind}"]
        if "enum" in schema and value not in schema["enum"]:
            return [f"{at} is {value!r}, not one of {schema['enum']}"]
        if "const" in schema and value != schema["const"]:
            return [f"{at} is {value!r}, not {schema['const']!r}"]
        if isinstance(value, list) and "items" in schema:
            return [
                problem
                for number, item in enumerate(value)
                for problem in self.problems(schema["items"], item, f"{at}[{number}]")
            ]
        return self._object_problems(schema, value, at) if isinstance(value, dict) else []

    def _object_problems(self, schema: dict[str, Any], value: dict[str, Any], at: str) -> list[str]:
        fields, rest = schema.get("properties", {}), schema.get("additionalProperties")
        found = [f"{at}.{name} is missing" for name in schema.get("required", []) if name not in value]
        for name, item in value.items():
            if name in fields:
                found += self.problems(fields[name], item, f"{at}.{name}")
            elif isinstance(rest, dict):
                found += self.problems(rest, item, f"{at}.{name}")
            elif fields and rest is not True:
                found.append(f"{at}.{name} is not documented")
        return found


def _is_a(kind: str, value: Any) -> bool:
    return isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))
