"""Scenarios by family: a function, the kernels it is played with, its variants, and the server it needs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass
from signal import SIGKILL, SIGTERM, Signals
from typing import Any

IPYKERNEL = ("python3",)
XEUS = ("xpython",)
BOTH = ("python3", "xpython")
ALL = ("python3", "xpython", "xpython-raw")

Play = Callable[..., Coroutine[Any, Any, None]]
PlayInParts = Callable[..., AsyncGenerator[None]]
"""Yields where the server is to be ended, and again where it is to be started."""


@dataclass(frozen=True)
class ServerConfig:
    """The flags of the server behind a scenario and, for a ``PlayInParts``, the signal that ends it."""

    flags: tuple[str, ...] = ()
    end: Signals | None = None


_OPEN = ("--kernel-encryption", "off")
SERVERS = {
    "plain": ServerConfig(_OPEN),
    "auto_restart": ServerConfig(("--kernel-auto-restart",)),
    "small_messages": ServerConfig(("--kernel-message-bytes-max", "20000")),
    "impatient": ServerConfig(
        ("--kernel-silence-s", "2", "--kernel-cleanup-s", "0.3", "--kernel-heartbeat-s", "0.5")
    ),
    "killed": ServerConfig(_OPEN, SIGKILL),
    "small_spool": ServerConfig(("--kernel-spool-bytes", "40000", *_OPEN), SIGKILL),
    "stopped": ServerConfig((), SIGTERM),
    "stayed": ServerConfig(("--kernels-stay",), SIGTERM),
}


@dataclass(frozen=True)
class Scenario:
    name: str
    family: str
    kernel: str
    server: str
    is_foreign: bool
    """Another program starts the kernel."""
    about: str
    play: Play | PlayInParts
    arguments: tuple[Any, ...]

    @property
    def is_in_parts(self) -> bool:
        return SERVERS[self.server].end is not None


class Family:
    """Collects the scenarios of a module; used as a decorator."""

    def __init__(self) -> None:
        self.scenarios: list[Scenario] = []

    def __call__(
        self,
        family: str,
        *,
        kernels: tuple[str, ...] = BOTH,
        server: str = "plain",
        is_foreign: bool = False,
        variants: dict[str, tuple[Any, ...]] | None = None,
    ) -> Callable[[Any], Any]:
        def add(play: Any) -> Any:
            for variant, arguments in (variants or {"": ()}).items():
                for kernel in kernels:
                    parts = (family, play.__name__.replace("_", "-"), variant, kernel)
                    self.scenarios.append(
                        Scenario(
                            name="-".join(part for part in parts if part),
                            family=family,
                            kernel=kernel,
                            server=server,
                            is_foreign=is_foreign,
                            about=(play.__doc__ or "").strip(),
                            play=play,
                            arguments=arguments,
                        )
                    )
            return play

        return add
