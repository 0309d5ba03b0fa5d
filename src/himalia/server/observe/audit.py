"""The audit trail: who did what on this server, as records of the reserved topic ``audit.events``.

Recording never waits and never fails the recorded action: records go through a bounded queue, and a task appends them
to the log. Records beyond the queue are dropped, counted and logged, and a record of its own has their number.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from enum import StrEnum
from itertools import islice
from typing import Any
from uuid import uuid4

import msgspec

from himalia.errors import ConfigurationError, HimaliaError, TopicNotFound
from himalia.log.api import Batch, Log
from himalia.protocol import encode
from himalia.record import Draft, Retention, TopicInfo, format_ts, now_us
from himalia.server.identity import Principal
from himalia.tasks import ShieldedTasks
from himalia.topics import AUDIT_TOPIC

logger = logging.getLogger("himalia.audit")

SERVER = "server"
"""The caller of what the server does itself, such as stopping an idle kernel."""
QUEUE_MAX = 10_000
BATCH_MAX = 500
TEXT_MAX = 1_000
RETRY_S = 1.0
REPEATS_S = 60.0
REPEATS_MAX = 1_000
"""Distinct events that are counted at a time, over all callers."""
REPEATS_OF_CALLER_MAX = 100
"""Distinct events of one caller that are counted within a minute."""
CLOSE_WITHIN_S = 2.0
MARK = "audit"
"""The header that distinguishes the server's own topic from one that a user made earlier."""


class AuditEvent(StrEnum):
    """The recorded events. ``docs/operations.md`` has the fields of each."""

    SIGNED_IN = "signed_in"
    SIGNED_OUT = "signed_out"
    KEY_REFUSED = "key_refused"
    KEY_CREATED = "key_created"
    KEY_REVOKED = "key_revoked"
    KEY_ROTATED = "key_rotated"
    KEY_CHANGED = "key_changed"
    KEY_EXPIRED = "key_expired"
    TOKEN_ROTATED = "token_rotated"
    SESSION_CREATED = "session_created"
    SESSION_REVOKED = "session_revoked"
    TOPIC_CREATED = "topic_created"
    TOPIC_DELETED = "topic_deleted"
    KERNEL_STARTED = "kernel_started"
    KERNEL_ATTACHED = "kernel_attached"
    KERNEL_INTERRUPTED = "kernel_interrupted"
    KERNEL_RESTARTED = "kernel_restarted"
    KERNEL_STOPPED = "kernel_stopped"
    CODE_RUN = "code_run"
    EXECUTION_CANCELLED = "execution_cancelled"
    INPUT_ANSWERED = "input_answered"
    TABLE_QUERIED = "table_queried"
    CLOCK_CONFIRMED = "clock_confirmed"
    RECORDS_DROPPED = "records_dropped"


class _Headers(msgspec.Struct):
    audit: str
    event: AuditEvent
    publisher: str


_Repeated = tuple[AuditEvent, str, tuple[tuple[str, Any], ...]]

_decode_headers = msgspec.json.Decoder(_Headers).decode


class Audit:
    """Belongs to the event loop. ``record`` may be called at any time, also before ``open`` and after ``close``."""

    def __init__(self, log: Log, retention: Retention) -> None:
        self.dropped = 0
        """Records that were dropped, because the log could not store for a long time."""
        self._log = log
        self._retention = retention
        self._queue: deque[Draft] = deque()
        # How often each event was repeated in the last minute.
        self._repeats: dict[_Repeated, int] = {}
        # Records dropped since the last successful append: the size of the gap in the trail.
        self._gap = 0
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._writing: asyncio.Task[None] | None = None
        self.shielded = ShieldedTasks()
        """For actions and their records: one without the other would be wrong."""

    async def open(self) -> None:
        """Create the topic if it does not exist; ``ConfigurationError`` if a topic of this name is not the server's."""
        try:
            info = await self._log.info(AUDIT_TOPIC)
        except TopicNotFound:
            await self._log.create(AUDIT_TOPIC, self._retention)
        else:
            if info.first < info.end:
                await self._check_owner(info)
            elif info.retention != self._retention:
                # It is empty, and the retention of its creator would remove records.
                await self._log.delete(AUDIT_TOPIC)
                await self._log.create(AUDIT_TOPIC, self._retention)
        self._writing = asyncio.create_task(self._write())

    async def close(self) -> None:
        """Append the queued records, unless the log cannot store them within two seconds."""
        if self._writing is None:
            return
        await self.shielded.wait(CLOSE_WITHIN_S)
        for repeated in list(self._repeats):
            self._end_minute(repeated)
        try:
            await asyncio.wait_for(self._idle.wait(), CLOSE_WITHIN_S)
        except TimeoutError:
            logger.error("%d audit records could not be stored before the server stopped", len(self._queue))
        self._writing.cancel()
        await asyncio.wait({self._writing})

    def record(self, event: AuditEvent, caller: Principal | str, /, **fields: Any) -> None:
        """Append a record soon. Fields that are None are left out. Returns at once and raises nothing."""
        name = caller if isinstance(caller, str) else caller.name
        logger.debug("%s by %s", event, name or "an unknown caller", extra={"event": event, "caller": name})
        try:
            draft = _draft(event, name, fields)
        except Exception:  # no error in a record may fail the recorded action
            logger.exception("making an audit record of %s failed", event)
            self._drop()
            return
        if len(self._queue) >= QUEUE_MAX:
            self._drop()
            return
        self._queue.append(draft)
        self._idle.clear()
        self._wake.set()

    def record_repeated(self, event: AuditEvent, caller: Principal, /, **fields: str | None) -> None:
        """As ``record``, but equal events within a minute become one record, with their ``count``.

        The page repeats its queries every few seconds; one record each would displace all others. So would one for each
        of a caller's thousands of different queries: beyond a limit only their number is recorded.
        """
        repeated = (event, caller.name, tuple(fields.items()))
        if repeated not in self._repeats and self._has_many(event, caller.name):
            repeated = (event, caller.name, ())
            self._count_from(repeated, 0)
        elif repeated not in self._repeats:
            self.record(event, caller, **fields)
            self._count_from(repeated, -1)
        self._repeats[repeated] += 1

    def _has_many(self, event: AuditEvent, caller: str) -> bool:
        mine = sum(known[:2] == (event, caller) for known in self._repeats)
        return mine >= REPEATS_OF_CALLER_MAX or len(self._repeats) >= REPEATS_MAX

    def _count_from(self, repeated: _Repeated, count: int) -> None:
        if repeated not in self._repeats:
            self._repeats[repeated] = count
            asyncio.get_running_loop().call_later(REPEATS_S, self._end_minute, repeated)

    def _end_minute(self, repeated: _Repeated) -> None:
        count = self._repeats.pop(repeated, 0)
        if count:
            event, caller, fields = repeated
            self.record(event, caller, **dict(fields), count=count)

    def _drop(self) -> None:
        self.dropped += 1
        self._gap += 1
        if self._gap == 1:
            logger.error("dropping audit records: %d are waiting for the log", len(self._queue))

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._queue:
                batch = list(islice(self._queue, BATCH_MAX))
                if await self._append(batch):
                    for _ in batch:
                        self._queue.popleft()
                    self._record_gap()
                else:
                    await asyncio.sleep(RETRY_S)
            self._idle.set()

    async def _append(self, drafts: list[Draft]) -> bool:
        try:
            # Not through the manager, whose counters are those of clients and kernels.
            await self._log.append(Batch(AUDIT_TOPIC, drafts))
        except HimaliaError as error:
            # /health reports a log that cannot store.
            logger.debug("audit records wait for the log: %s", error)
            return False
        except Exception:
            logger.exception("storing audit records failed; trying again")
            return False
        return True

    def _record_gap(self) -> None:
        if self._gap:
            count, self._gap = self._gap, 0
            logger.error("%d audit records were dropped", count)
            self.record(AuditEvent.RECORDS_DROPPED, SERVER, count=count)

    async def _check_owner(self, info: TopicInfo) -> None:
        """Raise ``ConfigurationError`` if a client made the topic, before the name was reserved."""
        first = (await self._log.read(AUDIT_TOPIC, info.first, limit=1)).records[0]
        try:
            if _decode_headers(first.headers).publisher == SERVER:
                return
        except msgspec.MsgspecError:
            pass
        raise ConfigurationError(
            f"the log has a topic {AUDIT_TOPIC!r} of your own, a name that the server needs for its audit trail: "
            f"rename it with 'himalia topics rename {AUDIT_TOPIC} NEW-NAME --log {self._log.url}' and start again",
            topic=AUDIT_TOPIC,
        )


def _draft(event: AuditEvent, caller: str, fields: dict[str, Any]) -> Draft:
    shown = {name: _truncate(value) for name, value in fields.items() if value is not None}
    payload = {"event": event, "caller": caller, "at": format_ts(now_us()), **shown}
    headers = {"publisher": SERVER, "caller": caller, "event": event, MARK: "1"}
    return Draft(str(uuid4()), encode(payload), encode(headers))


def _truncate(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    # Half of a surrogate pair cannot be stored as UTF-8.
    text = value.encode("utf-8", "replace").decode()
    return text if len(text) <= TEXT_MAX else text[:TEXT_MAX] + "..."
