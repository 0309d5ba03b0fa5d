"""The format of the server's own log lines (not the message log), as text or JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import logging.config
import re
import time
from typing import Any

_TOKEN = re.compile(r"(token=)[^&\s\"']+")
_QUERY = re.compile(r"\?[^\s\"']+")

# Control characters, line and paragraph separators, and what changes the direction of text.
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

# Attributes of every record; others were given as ``extra`` and are part of a structured line.
_USUAL = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "color_message"}


class HideTokens(logging.Filter):
    """Removes tokens in URLs from log lines.

    uvicorn's lines lose the whole query: a client may have sent a valid key under a wrong name, as in ``?api_key=``,
    which would stay in the log.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        if record.name.startswith("uvicorn"):
            record.msg, record.args = _QUERY.sub("?...", message), None
        elif "token=" in message:
            record.msg, record.args = _TOKEN.sub(r"\1...", message), None
        return True


class HideCancelled(logging.Filter):
    """Drops the tracebacks of tasks that uvicorn cancels at the end."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


class TextLines(logging.Formatter):
    """One line per message, with control characters in names of clients escaped; tracebacks are indented below it.

    So clients can neither forge lines nor send control sequences to the terminal of a reader.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = _UNPRINTABLE.sub(_escape, record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        lines = super().formatException(ei).splitlines()
        return "\n".join("    " + _UNPRINTABLE.sub(_escape, line) for line in lines)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")


class JsonLines(logging.Formatter):
    """One JSON object a line, its time in UTC."""

    converter = time.gmtime  # type: ignore[assignment]  # as the standard library does it

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "ts": self.formatTime(record, "%Y-%m-%dT%H:%M:%S") + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _USUAL}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(level: str, format: str) -> None:
    """Send everything to standard error in one format."""
    formatters: dict[str, Any] = {
        "text": {"()": TextLines, "fmt": "%(asctime)s %(levelname)-7s %(name)s: %(message)s"},
        "json": {"()": JsonLines},
    }
    quiet = "info" if level == "debug" else "warning"
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "filters": {"tokens": {"()": HideTokens}, "cancelled": {"()": HideCancelled}},
            "formatters": formatters,
            "handlers": {
                "stderr": {
                    "class": "logging.StreamHandler",
                    "formatter": format,
                    "filters": ["tokens", "cancelled"],
                },
            },
            "root": {"level": "WARNING", "handlers": ["stderr"]},
            "loggers": {
                "himalia": {"level": level.upper()},
                # uvicorn logs each connection at info, which belongs to debugging.
                "uvicorn": {"level": quiet.upper(), "handlers": [], "propagate": True},
                "uvicorn.error": {"level": quiet.upper()},
                "uvicorn.access": {"level": "WARNING", "handlers": [], "propagate": True},
            },
        }
    )
