"""``himalia keys``: change the keys file of a server. The server reads it again by itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from himalia.cli.options import Json, make_app
from himalia.cli.terminal.output import print_json, print_table, print_warning, write_line
from himalia.cli.terminal.units import parse_duration
from himalia.errors import ConfigurationError
from himalia.record import format_ts, now_us

if TYPE_CHECKING:
    from himalia.server.identity.keys import KeySpec
    from himalia.server.identity.keys_file import KeysFile
    from himalia.server.identity.principal import CallerLimits

app = make_app()

File = Annotated[
    Path | None,
    typer.Option(
        "--keys-file", help="The keys file of the server.", envvar="HIMALIA_KEYS_FILE", show_envvar=True
    ),
]
Name = Annotated[str, typer.Argument(help="The name of the key: letters, digits, '_' and '-'.")]
Patterns = list[str] | None


@app.callback()
def keys() -> None:
    """Add, list, remove and replace the keys of a server. It applies changes within seconds, without a restart.

    Example:

        himalia keys list --keys-file keys.toml
    """


@app.command("add")
def add_key(
    name: Name,
    publish: Annotated[
        Patterns, typer.Option(help="Topics it may publish to; repeatable.", metavar="PATTERN")
    ] = None,
    subscribe: Annotated[
        Patterns, typer.Option(help="Topics it may read; repeatable.", metavar="PATTERN")
    ] = None,
    manage: Annotated[
        Patterns, typer.Option(help="Topics it may create and delete; repeatable.", metavar="PATTERN")
    ] = None,
    execute: Annotated[
        Patterns, typer.Option(help="Kernels it may start and run code on; repeatable.", metavar="PATTERN")
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(help="How long it is valid: 90d, 12h; without a limit by default.", metavar="TIME"),
    ] = None,
    limit: Annotated[
        Patterns,
        typer.Option(help="A limit, such as publishes_per_s=100; repeatable.", metavar="NAME=NUMBER"),
    ] = None,
    keys_file: File = None,
    json: Json = False,
) -> None:
    """Add a key and print it. The key is printed only once: the file has its hash. Creates the file if it is missing.

    Examples:

        himalia keys add shop --publish 'orders.>' --keys-file keys.toml

        himalia keys add reports --subscribe 'orders.*' --expires 90d --limit connections=5

        himalia keys add ann --execute own --subscribe own
    """
    from himalia.server.identity.principal import Right

    given = {
        Right.PUBLISH: publish,
        Right.SUBSCRIBE: subscribe,
        Right.MANAGE: manage,
        Right.EXECUTE: execute,
    }
    key = _file(keys_file).add(
        name,
        {right: patterns or [] for right, patterns in given.items()},
        limits=_limits(limit or []),
        expires_us=_from_now(expires),
    )
    _print_key(name, key, json=json)


@app.command("list")
def list_keys(keys_file: File = None, json: Json = False) -> None:
    """List the keys of the file with their rights. The keys themselves cannot be printed.

    Examples:

        himalia keys list

        himalia keys list --keys-file keys.toml --json
    """
    found = [_summarize(key) for key in _file(keys_file).read()]
    if json:
        print_json(found)
        return
    columns = ["key", "id", "publish", "subscribe", "manage", "execute", "expires", "kept as"]
    rows = [
        [" ".join(v) if isinstance(v := key[column], list) else v or "" for column in columns]
        for key in found
    ]
    print_table(columns, rows, empty="there are no keys; see 'himalia keys add --help'")


@app.command("remove")
def remove_key(name: Name, keys_file: File = None, json: Json = False) -> None:
    """Remove a key. Its sessions and connections end within seconds.

    Example:

        himalia keys remove shop --keys-file keys.toml
    """
    _file(keys_file).remove(name)
    if json:
        print_json({"status": "removed", "key": name})
    else:
        write_line(f"removed {name}")


@app.command("rotate")
def rotate_key(
    name: Name,
    keep: Annotated[
        str | None,
        typer.Option(
            help="How long the old key stays valid together with the new one: 1h, 2d.", metavar="TIME"
        ),
    ] = None,
    expires: Annotated[
        str | None,
        typer.Option(help="How long the new key is valid; unchanged by default.", metavar="TIME"),
    ] = None,
    keys_file: File = None,
    json: Json = False,
) -> None:
    """Replace a key by a new one with the same name and rights, and print it once. The old one ends, or after --keep.

    Examples:

        himalia keys rotate shop --keys-file keys.toml

        himalia keys rotate shop --keep 1h
    """
    key = _file(keys_file).rotate(name, keep_until_us=_from_now(keep), expires_us=_from_now(expires))
    _print_key(name, key, json=json)


@app.command("hash")
def hash_keys(keys_file: File = None, json: Json = False) -> None:
    """Replace plain-text keys in the file by their hashes. The keys stay valid.

    Example:

        himalia keys hash --keys-file keys.toml
    """
    names = _file(keys_file).hash()
    if json:
        print_json({"status": "hashed", "keys": names})
    elif names:
        write_line(f"hashed {', '.join(names)}")
    else:
        print_warning("there is no key in plain text")


def _from_now(duration: str | None) -> int | None:
    return None if duration is None else now_us() + int(parse_duration(duration) * 1_000_000)


def _path(given: Path | None) -> Path:
    if given is None:
        raise typer.BadParameter("name the keys file with --keys-file, or in HIMALIA_KEYS_FILE")
    return given.expanduser()


def _file(given: Path | None) -> KeysFile:
    from himalia.server.identity.keys_file import KeysFile

    return KeysFile(_path(given))


def _print_key(name: str, key: str, *, json: bool) -> None:
    if json:
        print_json({"name": name, "key": key})
    else:
        write_line(key)


def _limits(given: list[str]) -> CallerLimits:
    from himalia.server.identity.principal import read_limits

    values: dict[str, Any] = {}
    for text in given:
        name, is_pair, number = text.partition("=")
        try:
            values[name] = float(number) if not number.isdecimal() else int(number)
        except ValueError:
            is_pair = ""
        if not is_pair:
            raise typer.BadParameter(f"{text!r} is not a limit such as publishes_per_s=100")
    try:
        return read_limits(values, "--limit")
    except ConfigurationError as error:
        raise typer.BadParameter(error.message) from None


def _summarize(key: KeySpec) -> dict[str, Any]:
    if key.is_old:
        kept_as = "hash of the old key"
    else:
        kept_as = "plain text" if key.is_plain else "hash"
    return {
        "key": key.name,
        "id": key.id,
        **{str(right): list(patterns) for right, patterns in key.rights.items()},
        "expires": None if key.expires_us is None else format_ts(key.expires_us)[:19] + "Z",
        "limits": key.limits,
        "kept as": kept_as,
    }
