"""Messages that belong to no registered request, kept for a while: the request may be registered late."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from himalia.jupyter.wire import KernelMessage


class Orphan(msgspec.Struct, frozen=True, gc=False):
    message: KernelMessage
    age_s: float


class _Entry:
    __slots__ = ("at_s", "message", "next")

    def __init__(self, message: KernelMessage, at_s: float) -> None:
        self.message = message
        self.at_s = at_s
        # The number of the next entry of the same parent; 0 for none.
        self.next = 0


class OrphanBuffer:
    """Keeps the newest orphans, within a number and a size. Adding and dropping one are O(1), and claiming those of
    a parent takes no longer than there are of them. Not thread-safe: the broker's lock guards it.
    """

    def __init__(self, messages_max: int, bytes_max: int) -> None:
        """With ``messages_max`` 0 it keeps nothing. A single message may be larger than ``bytes_max``."""
        self._messages_max = messages_max
        self._bytes_max = bytes_max
        self._entries: OrderedDict[int, _Entry] = OrderedDict()
        # The first and the last of each parent, by number.
        self._ends: dict[str, tuple[int, int]] = {}
        self._number = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, message: KernelMessage, now_s: float) -> int:
        """Keep a message; return how many were evicted for it."""
        self._number += 1
        number, parent_id = self._number, message.parent_id
        ends = self._ends.get(parent_id)
        if ends is None:
            self._ends[parent_id] = (number, number)
        else:
            self._entries[ends[1]].next = number
            self._ends[parent_id] = (ends[0], number)
        self._entries[number] = _Entry(message, now_s)
        self.size_bytes += message.size_bytes
        evicted = 0
        while len(self._entries) > self._messages_max or (
            self.size_bytes > self._bytes_max and len(self._entries) > 1
        ):
            self._drop_oldest()
            evicted += 1
        return evicted

    def claim(self, parent_id: str) -> list[KernelMessage]:
        """Remove and return all messages of this parent, in order of arrival."""
        claimed = []
        number, _ = self._ends.pop(parent_id, (0, 0))
        while number:
            entry = self._entries.pop(number)
            self.size_bytes -= entry.message.size_bytes
            claimed.append(entry.message)
            number = entry.next
        return claimed

    def expire(self, before_s: float) -> list[KernelMessage]:
        """Remove and return what came before this time."""
        expired = []
        while self._entries and next(iter(self._entries.values())).at_s < before_s:
            expired.append(self._drop_oldest())
        return expired

    def snapshot(self, now_s: float) -> list[Orphan]:
        """Return all orphans, in order of arrival."""
        return [Orphan(entry.message, now_s - entry.at_s) for entry in self._entries.values()]

    def _drop_oldest(self) -> KernelMessage:
        _, entry = self._entries.popitem(last=False)
        message = entry.message
        self.size_bytes -= message.size_bytes
        # The oldest of all is also the oldest of its parent.
        if entry.next:
            self._ends[message.parent_id] = (entry.next, self._ends[message.parent_id][1])
        else:
            del self._ends[message.parent_id]
        return message
