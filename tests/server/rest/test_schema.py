"""The shapes of ``himalia.protocol.models`` are those of the OpenAPI document: no field is missing on either side."""

from __future__ import annotations

from enum import EnumType
from typing import Any

import msgspec
import pytest

from himalia.protocol import ErrorBody, models
from himalia.record import Retention
from himalia.server.app import create_app
from himalia.server.rest.schema import model_of
from himalia.settings import Settings

SHAPES: list[type[msgspec.Struct]] = [
    ErrorBody,
    Retention,
    *(
        shape
        for name in models.__all__
        if not isinstance(shape := getattr(models, name), EnumType) and shape is not models.PubSubStats
    ),
]
"""All shapes that the document may have; those of the engine's statistics are part of those of the server."""


@pytest.fixture(scope="module")
def schemas() -> dict[str, Any]:
    found: dict[str, Any] = create_app(Settings(auth=False, log="memory://")).openapi()["components"]
    return found["schemas"]


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_a_shape_has_the_fields_of_its_schema(shape: type[msgspec.Struct], schemas: dict[str, Any]) -> None:
    """A field that the server gains or loses is one of the client library too."""
    model = model_of(shape)
    assert set(shape.__struct_fields__) == set(model.model_fields)
    documented = schemas.get(model.__name__) or model.model_json_schema()
    assert set(shape.__struct_fields__) == documented["properties"].keys()


def test_every_schema_is_a_shape(schemas: dict[str, Any]) -> None:
    """Nothing in the document is declared anywhere else."""
    assert schemas.keys() <= {model_of(shape).__name__ for shape in SHAPES}


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.__name__)
def test_msgspec_accepts_a_shape(shape: type[msgspec.Struct]) -> None:
    """Its annotations are valid for decoding too, which msgspec checks at the first use only."""
    assert msgspec.json.schema(shape)
