"""Commands that are imported when they are used, so that ``himalia tail`` does not load a server."""

from __future__ import annotations

from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup
from typer.main import get_command

COMMANDS = (
    "up",
    "serve",
    "run",
    "kernel",
    "watch",
    "attach",
    "topics",
    "publish",
    "tail",
    "stats",
    "audit",
    "pipeline",
    "clock",
    "token",
    "keys",
    "sessions",
    "backup",
    "restore",
)
"""The commands, in the order of the help. The module ``himalia.cli.commands.<name>`` has the command as its ``app``."""


class LazyGroup(TyperGroup):
    """A group of the commands ``NAMES``. Its help and completion load every command; running one loads that one."""

    NAMES: ClassVar[tuple[str, ...]] = COMMANDS
    MODULES: ClassVar[str] = "himalia.cli.commands.{}"

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.NAMES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.NAMES:
            return None
        command = self.commands.get(cmd_name)
        if command is None:
            found: typer.Typer = import_module(self.MODULES.format(cmd_name)).app
            command = self.commands[cmd_name] = get_command(found)
            command.name = cmd_name
        return command
