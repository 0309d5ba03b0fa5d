"""A kernel's whole topic, folded into the states of its requests: any number at a time, from any client."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from himalia.jupyter.lifecycle import DELETED, ENDINGS, Ending, RequestState
from himalia.jupyter.records import EVENT_CHANNEL, RecordHeaders, read_headers, to_message
from himalia.jupyter.request_events import (
    UNREADABLE,
    RequestEvent,
    channel_in,
    read_content,
    record_to_event,
    text_or_none,
)
from himalia.record import Record

REMEMBER_US = 60_000_000
"""How long a message waits for its request and a closed request is remembered, by the times of the records."""


class KernelTimeline:
    """Folds the records of a kernel's topic, in their order, into the states of its requests.

    A closed request is remembered as long as there are never more than 60 s between its records: later messages of it
    are late, and change nothing. After that its id may appear again, for another request. When the kernel died or was
    stopped, everything before is forgotten at once. Messages of a request that is not known yet wait 60 s for it.
    """

    def __init__(self) -> None:
        self._states: dict[str, RequestState] = {}
        # The time of the last record of each closed request.
        self._last_us: dict[str, int] = {}
        self._early: dict[str, list[RequestEvent]] = defaultdict(list)
        self._forgot_us = 0

    @property
    def open(self) -> list[RequestState]:
        """The requests that are not closed, in the order in which they became known."""
        return [state for state in self._states.values() if state.is_open]

    def find(self, request_id: str) -> RequestState | None:
        """A request that is open or still remembered."""
        return self._states.get(request_id)

    def apply(self, record: Record) -> list[RequestState]:
        """Apply the topic's next record; returns the new states of the requests that it changed.

        The end of a kernel changes every open request. Never raises, whatever the record holds.
        """
        headers = read_headers(record)
        self._forget_before(record.ts_us - REMEMBER_US)
        ended = self._apply_kernel_event(record, headers)
        event = record_to_event(record, headers)
        request_id = headers.parent_id if event is None else event.request_id
        if not request_id:
            return ended
        if self._is_late(request_id, record.ts_us) or event is None:
            return ended
        return [*ended, *self._apply_event(event)]

    def delete(self, us: int) -> list[RequestState]:
        """Close every open request: the topic was deleted, and created again at this time."""
        return self._end(DELETED, us, "")

    def _apply_event(self, event: RequestEvent) -> Iterator[RequestState]:
        known = self._states.get(event.request_id)
        state = known or self._with_early_events(event)
        changed = state.apply(event)
        if changed is state:
            return
        if changed.is_known:
            self._early.pop(event.request_id, None)
            self._states[event.request_id] = changed
            if changed.is_closed:
                self._last_us[event.request_id] = event.us
            yield changed
        else:
            self._early[event.request_id].append(event)

    def _with_early_events(self, event: RequestEvent) -> RequestState:
        state = RequestState(request_id=event.request_id)
        for early in self._early.get(event.request_id, ()):
            if event.us - early.us <= REMEMBER_US:
                state = state.apply(early)
        return state

    def _apply_kernel_event(self, record: Record, headers: RecordHeaders) -> list[RequestState]:
        if channel_in(headers) != EVENT_CHANNEL:
            return []
        try:
            content = read_content(to_message(record, headers))
        except UNREADABLE:
            return []
        ending = ENDINGS.get(content.event) if isinstance(content.event, str) else None
        return [] if ending is None else self._end(ending, record.ts_us, text_or_none(content.reason) or "")

    def _end(self, ending: Ending, us: int, reason: str) -> list[RequestState]:
        ended = [state.end(ending, us, reason) for state in self.open]
        for state in ended:
            self._states[state.request_id] = state
            self._last_us[state.request_id] = us
        if ending.is_final:
            self._states.clear()
            self._last_us.clear()
            self._early.clear()
        return ended

    def _is_late(self, request_id: str, us: int) -> bool:
        """Return whether the request of a record is closed, and still remembered."""
        last_us = self._last_us.get(request_id)
        if last_us is None:
            return False
        if us - last_us > REMEMBER_US:
            del self._last_us[request_id], self._states[request_id]
            return False
        self._last_us[request_id] = max(us, last_us)
        return True

    def _forget_before(self, us: int) -> None:
        """Forget requests and messages before this time; not at every record, since it looks at each of them."""
        if us < self._forgot_us:
            return
        self._forgot_us = us + REMEMBER_US
        for request_id in [one for one, last_us in self._last_us.items() if last_us < us]:
            del self._last_us[request_id], self._states[request_id]
        for request_id, events in list(self._early.items()):
            if events[-1].us < us:
                del self._early[request_id]
