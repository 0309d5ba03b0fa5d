"""What can be chosen about a log: the settings of a server, and what only programs and tests choose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from himalia.log.clock import SystemTime, TimeSource

if TYPE_CHECKING:
    from himalia.settings import LogSettings


def _settings_without_retention() -> LogSettings:
    # Imported here: a program that opens no log need not load pydantic.
    from himalia.settings import LogSettings

    return LogSettings(retention_age_s=0)


class LogOptions(msgspec.Struct, frozen=True):
    """Options of ``open_log`` and of every implementation. By default no record is ever too old."""

    settings: LogSettings = msgspec.field(default_factory=_settings_without_retention)
    clock: TimeSource = SystemTime()
    retention_interval_s: float = 1.0
    """How often retention is enforced."""
    retention_paused: bool = False
    """Whether retention starts only with the first call of ``Log.hold_retention``."""
    cache_bytes_max: int = 16 << 20
    """Recent records kept in memory by a log on disk, of all topics together."""
    cache_count_max: int = 65_536
    probe_interval_s: float = 1.0
    """How often a log on disk that failed is probed."""
