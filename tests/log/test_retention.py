"""What retention keeps. How the SQLite log goes about it is in ``test_sqlite_upkeep.py``."""

from __future__ import annotations

from typing import Any

from himalia.log import Batch
from himalia.record import Draft, Retention

from .backends import UNLIMITED, Backend, Clock, add, enforce_retention, read_all, soon


async def kept(log: Any, topic: str) -> list[int]:
    """The offsets that are kept, after looking whether all the topic says of itself is true."""
    await enforce_retention(log)
    info = await log.info(topic)
    records = await read_all(log, topic)
    offsets = [record.offset for record in records]
    assert offsets == list(range(info.first, info.end))
    assert info.bytes == sum(record.size_bytes for record in records)
    assert (await log.read(topic, 0, limit=1)).first == info.first
    return offsets


async def add_hundreds(log: Any, topic: str, count: int, prefix: str = "m") -> None:
    """Records of 100 bytes each."""
    sent = [Draft(f"{prefix}{i:04}", b"x" * (98 - len(prefix) - 4)) for i in range(count)]
    await soon(log.append(Batch(topic, sent)))


async def test_count(log: Any) -> None:
    """The newest ``count`` records are kept."""
    await log.create("t", Retention(count=3))
    await add(log, "t", 10)
    assert await kept(log, "t") == [7, 8, 9]
    await add(log, "t", 2, "later")
    assert await kept(log, "t") == [9, 10, 11]


async def test_bytes(log: Any) -> None:
    """As many of the newest records are kept as fit into ``bytes``."""
    await log.create("t", Retention(bytes=250))
    await add_hundreds(log, "t", 10)
    assert await kept(log, "t") == [8, 9]


async def test_the_newest_record_never_goes_for_its_size(log: Any) -> None:
    """A record larger than the limit is kept until the next one comes."""
    await log.create("t", Retention(bytes=50))
    await add_hundreds(log, "t", 3, "a")
    assert await kept(log, "t") == [2]
    await add_hundreds(log, "t", 1, "b")
    assert await kept(log, "t") == [3]
    await soon(log.append(Batch("t", [Draft("huge", b"x" * 8_000_000)])))
    assert await kept(log, "t") == [4]


async def test_age(log: Any, backend: Backend) -> None:
    """Records older than ``age_s`` go, also the last one; offsets go on from where they were."""
    await log.create("t", Retention(age_s=10))
    for n in range(4):
        await add(log, "t", 2, f"{n}-")
        backend.clock.advance(4)
    # Ages are now 16, 12, 8 and 4 seconds.
    assert await kept(log, "t") == [4, 5, 6, 7]
    backend.clock.advance(2)
    assert await kept(log, "t") == [4, 5, 6, 7]
    backend.clock.advance(0.000001)
    assert await kept(log, "t") == [6, 7]
    backend.clock.advance(100)
    assert await kept(log, "t") == []
    assert list((await add(log, "t", 1, "new")).offsets) == [8]
    assert await kept(log, "t") == [8]


async def test_the_strictest_limit_counts(log: Any, backend: Backend) -> None:
    """A record goes when any of the three limits says so."""
    await log.create("t", Retention(age_s=10, bytes=450, count=6))
    await add_hundreds(log, "t", 10, "a")
    assert await kept(log, "t") == [6, 7, 8, 9]
    backend.clock.advance(11)
    await add_hundreds(log, "t", 2, "b")
    assert await kept(log, "t") == [10, 11]


async def test_defaults_and_a_topics_own_limits(backend: Backend) -> None:
    """A topic's own limit takes the place of the server's; 0 lifts it; what it leaves out is the server's."""
    log = await backend.open(retention=Retention(age_s=10, count=5))
    await log.create("default")
    await log.create("own", Retention(count=7))
    await log.create("lifted", Retention(count=0))
    for topic in ("default", "own", "lifted"):
        await add(log, topic, 200)
    assert len(await kept(log, "default")) == 5
    assert len(await kept(log, "own")) == 7
    assert len(await kept(log, "lifted")) == 200
    backend.clock.advance(11)
    for topic in ("default", "own", "lifted"):
        assert await kept(log, topic) == []


async def test_no_limits(backend: Backend) -> None:
    """Without limits nothing goes, however old."""
    log = await backend.open(retention=UNLIMITED)
    await log.create("t", Retention(age_s=1e18, bytes=(1 << 63) - 1, count=0))
    await add(log, "t", 300)
    backend.clock.advance(1e9)
    assert len(await kept(log, "t")) == 300


async def test_many_topics_at_once(log: Any) -> None:
    """Every topic beyond its limit is cut, not only the first."""
    for n in range(60):
        await log.create(f"t{n}", Retention(count=n % 4 + 1))
        await add(log, f"t{n}", 30)
    for n in range(60):
        assert len(await kept(log, f"t{n}")) == n % 4 + 1


async def test_it_happens_by_itself(backend: Backend) -> None:
    """Retention does not wait to be asked."""
    log = await backend.open(retention_interval_s=0.01)
    await log.create("t", Retention(age_s=5))
    await add(log, "t", 3)
    backend.clock.advance(6)
    watch = log.watch()
    n = 0
    # Each turn waits for a commit, so this ends by events and not by time.
    while (await log.info("t")).first < 3:
        n += 1
        await add(log, "t", 1, f"{n}-")
        await soon(anext(watch))


async def test_the_seeds_history(tmp_path: Any, clock: Clock) -> None:
    """The memory log keeps 100 records a topic unless told otherwise, also when the server says "no limit"."""
    for retention in (None, Retention(count=0), Retention(age_s=1000.0)):
        log = await Backend("memory", tmp_path, clock).open(retention=retention)
        await log.create("t")
        await add(log, "t", 250)
        assert len(await read_all(log, "t")) == 100
        await log.close()
