"""A kernel's whole topic, folded into the states of its requests: any number at a time, whoever sent them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from himalia.jupyter.lifecycle import DELETED, ENDINGS, Ending, RequestState
from himalia.jupyter.records import EVENT_CHANNEL, RecordHeaders, headers_of, message_of
from himalia.jupyter.request_events import (
    UNREADABLE,
    RequestEvent,
    channel_in,
    event_of_record,
    read_content,
    text_or_none,
)
from himalia.record import Record

REMEMBER_US = 60_000_000
"""How long a message waits for its request, and a closed request is remembered, in the time of the topic."""


class KernelTimeline:
    """The requests of one kernel, folded record by record. The order of the records is all that matters.

    A closed request is remembered as long as there are never more than 60 s between its records, so that what comes
    late is known as late. After that its id may appear again, as another request. When the kernel has died or was
    stopped, everything before is forgotten at once. Messages of a request that is not known yet wait 60 s for it.
    """

    def __init__(self) -> None:
        self._states: dict[str, RequestState] = {}
        # The time of the last record of each closed request.
        self._heard_us: dict[str, int] = {}
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
        """Take the topic's next record; returns the new states of the requests that it changed.

        The end of a kernel changes all that are open. Never raises, whatever the record holds.
        """
        headers = headers_of(record)
        self._forget_before(record.ts_us - REMEMBER_US)
        ended = self._apply_kernel_event(record, headers)
        event = event_of_record(record, headers)
        request_id = headers.parent_id if event is None else event.request_id
        if not request_id:
            return ended
        if self._is_late(request_id, record.ts_us) or event is None:
            return ended
        return [*ended, *self._apply_event(event)]

    def delete(self, us: int) -> list[RequestState]:
        """The topic was deleted, and created again at this time: nothing answers what is open."""
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
                self._heard_us[event.request_id] = event.us
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
            content = read_content(message_of(record, headers))
        except UNREADABLE:
            return []
        ending = ENDINGS.get(content.event) if isinstance(content.event, str) else None
        return [] if ending is None else self._end(ending, record.ts_us, text_or_none(content.reason) or "")

    def _end(self, ending: Ending, us: int, reason: str) -> list[RequestState]:
        ended = [state.end(ending, us, reason) for state in self.open]
        for state in ended:
            self._states[state.request_id] = state
            self._heard_us[state.request_id] = us
        if ending.is_final:
            self._states.clear()
            self._heard_us.clear()
            self._early.clear()
        return ended

    def _is_late(self, request_id: str, us: int) -> bool:
        """Whether the request of a record is closed, and still remembered."""
        heard_us = self._heard_us.get(request_id)
        if heard_us is None:
            return False
        if us - heard_us > REMEMBER_US:
            del self._heard_us[request_id], self._states[request_id]
            return False
        self._heard_us[request_id] = max(us, heard_us)
        return True

    def _forget_before(self, us: int) -> None:
        """Drop what is older, but not at every record: that would cost a look at all of it."""
        if us < self._forgot_us:
            return
        self._forgot_us = us + REMEMBER_US
        for request_id in [one for one, heard_us in self._heard_us.items() if heard_us < us]:
            del self._heard_us[request_id], self._states[request_id]
        for request_id, events in list(self._early.items()):
            if events[-1].us < us:
                del self._early[request_id]
