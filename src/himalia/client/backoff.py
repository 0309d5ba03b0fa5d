"""How long to wait before trying again."""

from __future__ import annotations

import random

FIRST_S = 0.1
LONGEST_S = 5.0


class Backoff:
    """Waits that double, each shortened by chance so that many clients do not come back all at once."""

    def __init__(self) -> None:
        self._tries = 0

    def reset(self) -> None:
        """It worked: the next failure starts over."""
        self._tries = 0

    def next_s(self) -> float:
        longest: float = min(LONGEST_S, FIRST_S * 2**self._tries)
        self._tries = min(self._tries + 1, 30)
        return longest * random.uniform(0.5, 1)
