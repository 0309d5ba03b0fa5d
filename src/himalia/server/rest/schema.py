"""Between the shapes of ``himalia.protocol.models`` and FastAPI: Pydantic models made from them, and JSON responses.

FastAPI documents and validates with Pydantic. ``model_of`` derives a Pydantic model from a struct, so a shape is
declared once. Responses are encoded by msgspec and never pass Pydantic.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from fastapi import Path, Response
from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, StrictBool, create_model
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, core_schema

from himalia.protocol import ErrorBody, encode, models
from himalia.protocol.models.topics import TOPIC_NAME
from himalia.record import Retention

JSON = "application/json"
NDJSON = "application/x-ndjson"

# The names of schemas in the OpenAPI document are public: code generators make class names of them.
_SCHEMA_NAMES: dict[type[msgspec.Struct], str] = {
    ErrorBody: "ErrorDetail",
    Retention: "RetentionBody",
    models.Attached: "AttachedResponse",
    models.ClockConfirmed: "ConfirmClockResponse",
    models.Execution: "ExecutionBody",
    models.ExecutionError: "ExecutionErrorBody",
    models.Health: "HealthResponse",
    models.IncomingMessage: "PublishBody",
    models.Kernel: "KernelBody",
    models.KernelSpec: "KernelSpecBody",
    models.KernelSpecs: "KernelSpecsResponse",
    models.LastMinute: "LastMinuteBody",
    models.Rates: "RatesBody",
    models.Skipped: "SkippedBody",
    models.Stats: "StatsResponse",
    models.Submitted: "ExecuteResponse",
    models.SubscriberStats: "SubscriberStatsBody",
    models.TableColumn: "ColumnBody",
    models.TableSummary: "TableBody",
    models.TopicStats: "TopicStatsBody",
}
# Part of requests, where unknown fields are refused, and of responses, whose unknown fields a client ignores.
_CLOSED = frozenset({Retention})
# May have more fields than are documented.
_OPEN = frozenset({models.KernelSpecFile})
# Requests whose fields may be left out although the struct does not omit defaults.
_OPTIONAL = frozenset({Retention, models.IncomingMessage})

Shape = TypeVar("Shape")


@cache
def model_of(shape: type[msgspec.Struct]) -> type[BaseModel]:
    """Make the Pydantic model of a struct, with its name in the OpenAPI document."""
    config = shape.__struct_config__
    has_optional = config.omit_defaults or shape in _OPTIONAL
    hints = get_type_hints(shape, include_extras=True)
    fields: dict[str, Any] = {
        field.name: (_translate_annotation(hints[field.name]), _get_default(field) if has_optional else ...)
        for field in msgspec.structs.fields(shape)
    }
    extra: Literal["allow", "forbid", "ignore"] = "ignore"
    if shape in _OPEN:
        extra = "allow"
    elif config.forbid_unknown_fields or shape in _CLOSED:
        extra = "forbid"
    created: type[BaseModel] = create_model(
        _SCHEMA_NAMES.get(shape, shape.__name__),
        __config__=ConfigDict(extra=extra),
        __doc__=shape.__doc__ if "__doc__" in vars(shape) else None,
        **fields,
    )
    return created


def _get_default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return ... if field.default is msgspec.NODEFAULT else field.default


def _translate_annotation(hint: Any) -> Any:
    """Translate a struct's annotation: nested structs become models, ``msgspec.Meta`` becomes ``Field``."""
    origin = get_origin(hint)
    if origin is Annotated:
        inner, *metas = get_args(hint)
        described = next(
            (meta.extra["shape"] for meta in metas if meta.extra and "shape" in meta.extra), inner
        )
        return Annotated[_translate_annotation(described), *(_translate_meta(meta) for meta in metas)]
    if origin in (Union, UnionType):
        return Union[tuple(_translate_annotation(choice) for choice in get_args(hint))]  # noqa: UP007
    if origin in (list, dict):
        return origin[tuple(_translate_annotation(item) for item in get_args(hint))]
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return model_of(hint)
    if hint is bool:
        return StrictBool
    return Any if hint is msgspec.Raw else hint


def _translate_meta(meta: msgspec.Meta) -> FieldInfo:
    """Translate documentation and constraints; constraints in ``extra["request"]`` count for requests only."""
    constraints = {
        name: value
        for name in ("ge", "gt", "le", "lt", "min_length", "max_length")
        if (value := getattr(meta, name)) is not None
    }
    found: FieldInfo = Field(
        description=meta.description,
        examples=meta.examples,
        json_schema_extra=meta.extra_json_schema,
        **constraints,
        **(meta.extra or {}).get("request", {}),
    )
    return found


class _Validated:
    """Has Pydantic validate a request's body by the model of its struct, and then make the struct."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        def to_struct(model: BaseModel) -> msgspec.Struct:
            struct: msgspec.Struct = msgspec.convert(model.model_dump(exclude_unset=True), source)
            return struct

        return core_schema.no_info_after_validator_function(
            to_struct, handler.generate_schema(model_of(source))
        )


JsonBody = Annotated[Shape, _Validated()]
"""The body of a request, validated and documented: ``body: Annotated[JsonBody[models.ExecuteRequest], Body()]``."""


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Respond with a struct, or anything else that msgspec encodes."""
    return Response(encode(content), status, headers, JSON)


def errors(
    descriptions: Mapping[int, str], shape: type[msgspec.Struct] = models.ErrorResponse
) -> dict[int | str, dict[str, Any]]:
    """Document the errors of a call, by status."""
    return {
        status: {"model": model_of(shape), "description": description}
        for status, description in descriptions.items()
    }


ERRORS = errors(
    {
        401: "No key, or an unknown one",
        403: "The key lacks the right, or the origin is foreign",
        408: "The body arrived too slowly",
        414: "The URL is too long",
        422: "Bad input",
        503: "The log cannot store now, or the server receives too much at once; retry",
    }
)
NOT_FOUND = errors({404: "No such topic"})
TopicName = Path(description="The topic's name.", examples=["orders"], json_schema_extra=TOPIC_NAME)
