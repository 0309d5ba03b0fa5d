"""Settings as flags of a command, made from the fields of ``Settings``, so that the two cannot drift apart."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsError
from pydantic_settings.sources import EnvSettingsSource

from himalia.settings import Settings

Command = TypeVar("Command", bound=Callable[..., None])

ENV_PREFIX = "HIMALIA_"
METAVARS = {int: "INTEGER", float: "NUMBER"}


class _Environment(EnvSettingsSource):
    """Environment variables in which a list may be JSON, or items separated by commas."""

    def decode_complex_value(self, field_name: str, field: FieldInfo, value: Any) -> Any:
        if isinstance(value, str) and not value.lstrip().startswith("["):
            return [part.strip() for part in value.split(",") if part.strip()]
        return super().decode_complex_value(field_name, field, value)


class _CommandSettings(Settings):
    """The settings of a command: flags override the environment."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        *others: Any,
        **named: Any,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings, _Environment(settings_cls))


def read_settings(flags: dict[str, Any]) -> Settings:
    """Read the settings from flags (``None`` where not given) and the environment.

    Raises ``typer.BadParameter``, which names the flag or the variable that is wrong.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return _CommandSettings(**given)
    except ValidationError as error:
        raise typer.BadParameter("; ".join(_describe_problems(error.errors(), given))) from None
    except SettingsError as error:
        raise typer.BadParameter(f"{error}".replace('"', "'")) from None


def _describe_problems(problems: list[ErrorDetails], given: dict[str, Any]) -> Iterator[str]:
    for problem in problems:
        name = str(problem["loc"][0])
        source = flag_of(name) if name in given else env_of(name)
        reason = problem["msg"][:1].lower() + problem["msg"][1:]
        yield f"{source} {problem['input']!r}: {reason}"


def flag_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def env_of(name: str) -> str:
    return ENV_PREFIX + name.upper()


def _base_type(annotation: Any) -> Any:
    """Return the type inside of ``Annotated`` and ``| None``."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _base_type(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return _base_type(next(arg for arg in get_args(annotation) if arg is not types.NoneType))
    return annotation


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    base = _base_type(field.annotation)
    annotation: Any = str | None
    metavar: str | None = METAVARS.get(base, "TEXT")
    flag = flag_of(name)
    if base is bool:
        annotation, metavar, flag = bool | None, None, f"{flag}/--no-{flag[2:]}"
    elif get_origin(base) is list:
        annotation = list[str] | None
    elif get_origin(base) is Literal:
        metavar = "|".join(get_args(base))
    elif getattr(base, "__name__", "") == "Path":
        metavar = "PATH"
    option = typer.Option(flag, help=_help(name, field, base), metavar=metavar, show_default=False)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[annotation, option]
    )


def _help(name: str, field: FieldInfo, base: Any) -> str:
    """Return the description of a setting, with its environment variable and its default."""
    default = field.get_default(call_default_factory=True)
    facts = [env_of(name)]
    if get_origin(base) is list:
        facts.append("repeatable")
    elif base is bool:
        facts.append("on" if default else "off")
    elif default is not None:
        facts.append(f"default {default:g}" if isinstance(default, float) else f"default {default}")
    return f"{field.description} ({'; '.join(facts)})"


def with_flags(*names: str) -> Callable[[Command], Command]:
    """Return a decorator that adds a flag for each of these settings to a function of ``**flags``."""

    def add_flags(function: Command) -> Command:
        own = inspect.signature(function, eval_str=True).parameters.values()
        parameters = [parameter for parameter in own if parameter.kind is not inspect.Parameter.VAR_KEYWORD]
        parameters += [_parameter(name, Settings.model_fields[name]) for name in names]
        function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return function

    return add_flags
