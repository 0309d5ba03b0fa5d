"""The spool: all that was published comes back in order, within its bound, whatever the disk does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from himalia.keeper import spool as spool_module
from himalia.keeper.spool import READ_BYTES, Spool, Spooled, SpoolReader, read_spool

MESSAGES = [[b"<IDS|MSG>", b"signature", b"%d" % number, b""] for number in range(100)]


def segments(directory: Path) -> list[Path]:
    return sorted((directory / "spool").glob("*.seg"))


def spool_of(directory: Path, count: int = 10) -> Spool:
    spool = Spool(directory)
    spool.append(MESSAGES[:count])
    return spool


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(batches=st.lists(st.lists(st.lists(st.binary(max_size=50), max_size=4), max_size=5), max_size=5))
def test_what_is_written_comes_back(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[list[bytes]]]
) -> None:
    """Every message is read with the frames it had, numbered from 0 without a hole, however it was written."""
    directory = tmp_path_factory.mktemp("spool")
    spool = Spool(directory, segment_bytes=100)
    for batch in batches:
        spool.append(batch)
    flat = [message for batch in batches for message in batch]
    assert list(read_spool(directory)) == list(enumerate(flat))
    assert (spool.first, spool.end, spool.dropped) == (0, len(flat), 0)


def test_a_reader_goes_on_where_it_stopped(tmp_path: Path) -> None:
    """Reading again after the last seq gives what was written meanwhile, and nothing twice."""
    spool = Spool(tmp_path, segment_bytes=100)
    seen = []
    for message in MESSAGES:
        spool.append([message])
        seen += read_spool(tmp_path, seen[-1].seq if seen else -1)
    assert [entry.frames for entry in seen] == MESSAGES
    assert len(segments(tmp_path)) > 10


def test_a_directory_without_a_spool_has_nothing_to_read(tmp_path: Path) -> None:
    """Reading before anything was kept is not an error."""
    assert list(read_spool(tmp_path)) == []


def test_the_oldest_make_room_and_are_counted(tmp_path: Path) -> None:
    """The files never take more than the bound; what had to go is exactly what is counted."""
    spool = Spool(tmp_path, bytes_max=2000)
    for message in MESSAGES:
        spool.append([message])
        size = sum(path.stat().st_size for path in segments(tmp_path))
        assert size == spool.size_bytes <= 2000
    left = list(read_spool(tmp_path))
    assert [entry.frames for entry in left] == MESSAGES[spool.first :]
    assert spool.dropped == spool.first == left[0].seq > 0
    assert left[-1].seq + 1 == spool.end == len(MESSAGES)


def test_one_batch_above_the_bound_keeps_its_end(tmp_path: Path) -> None:
    """The bound holds inside a batch as well."""
    spool = Spool(tmp_path, bytes_max=2000)
    spool.append(MESSAGES)
    left = list(read_spool(tmp_path))
    assert [entry.frames for entry in left] == MESSAGES[spool.dropped :]
    assert spool.size_bytes <= 2000


def test_a_message_larger_than_the_bound_is_dropped_alone(tmp_path: Path) -> None:
    """It is counted, and its neighbours are kept."""
    spool = Spool(tmp_path, bytes_max=1000)
    spool.append([[b"before"], [b"x" * 2000], [b"after"]])
    assert list(read_spool(tmp_path)) == [(0, [b"before"]), (2, [b"after"])]
    assert (spool.dropped, spool.end) == (1, 3)


def test_a_message_larger_than_a_segment_is_kept(tmp_path: Path) -> None:
    """A segment holds at least one message, of any size within the bound."""
    spool = Spool(tmp_path, bytes_max=1000)
    spool.append([[b"before"], [b"x" * 900], [b"after"]])
    assert [entry.frames[0][:1] for entry in read_spool(tmp_path)][-1] == b"a"
    assert spool.size_bytes <= 1000
    spool.append([[b"y" * 975]])
    assert list(read_spool(tmp_path)) == [(3, [b"y" * 975])]


def test_a_torn_tail_is_tolerated_at_every_byte(tmp_path: Path) -> None:
    """Wherever a file was cut, the whole messages before the cut are read, and no others."""
    spool_of(tmp_path).close()
    (path,) = segments(tmp_path)
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        read = list(read_spool(tmp_path))
        assert read == list(enumerate(MESSAGES[: len(read)]))
        assert len(read) == length * 10 // len(data)


def test_a_new_keeper_goes_on_after_a_torn_tail(tmp_path: Path) -> None:
    """What was torn leaves a hole in the numbers; what follows is read as if nothing had happened."""
    spool_of(tmp_path).close()
    (path,) = segments(tmp_path)
    path.write_bytes(path.read_bytes()[:-3])
    spool = Spool(tmp_path)
    spool.append([[b"later"]])
    assert [entry.seq for entry in read_spool(tmp_path)] == [*range(9), 10]
    assert spool.end == 11


def test_a_new_keeper_goes_on_with_the_numbers(tmp_path: Path) -> None:
    """After a restart of the kernel nothing is lost, repeated or renumbered."""
    for start in range(0, 100, 10):
        spool = Spool(tmp_path)
        spool.append(MESSAGES[start : start + 10])
        spool.close()
    assert list(read_spool(tmp_path)) == list(enumerate(MESSAGES))


@pytest.mark.parametrize("left", [b"", b"\x07"])
def test_a_segment_without_a_message_is_no_obstacle(tmp_path: Path, left: bytes) -> None:
    """A keeper that was killed before it wrote leaves an empty or torn file, and the next one goes on."""
    spool_of(tmp_path).close()
    (tmp_path / "spool" / "00000010.seg").write_bytes(left)
    spool = Spool(tmp_path)
    spool.append([[b"later"]])
    assert [entry.frames for entry in read_spool(tmp_path)] == [*MESSAGES[:10], [b"later"]]


def test_damage_ends_its_segment_only(tmp_path: Path) -> None:
    """Lengths that do not add up never raise, nor hide what is in the other segments."""
    spool = Spool(tmp_path, segment_bytes=200)
    spool.append(MESSAGES)
    damaged = segments(tmp_path)[3]
    data = bytearray(damaged.read_bytes())
    data[16] ^= 0xFF
    damaged.write_bytes(data)
    read = [entry.frames for entry in read_spool(tmp_path)]
    assert read[0] == MESSAGES[0] and read[-1] == MESSAGES[-1]
    assert 90 <= len(read) < 100


def test_a_segment_that_goes_while_it_is_read_is_passed_over(tmp_path: Path) -> None:
    """The bound may remove what a reader was about to read; the jump in the numbers tells."""
    spool = Spool(tmp_path, bytes_max=2000)
    spool.append(MESSAGES[:40])
    reading = read_spool(tmp_path)
    first = next(reading)
    spool.append(MESSAGES[40:80])
    seqs = [first.seq, *(entry.seq for entry in reading)]
    assert seqs == sorted(set(seqs))


# A disk that refuses


def test_what_the_disk_refuses_waits_in_order(tmp_path: Path) -> None:
    """While nothing can be written nothing is lost: it is written before whatever comes later."""
    spool = Spool(tmp_path)
    (tmp_path / "spool").rmdir()
    for number in range(3):
        spool.append([MESSAGES[number]])
    assert (spool.unwritten, spool.written, spool.dropped, spool.end) == (3, 0, 0, 3)
    (tmp_path / "spool").mkdir()
    spool.append(MESSAGES[3:5])
    assert list(read_spool(tmp_path)) == list(enumerate(MESSAGES[:5]))
    assert (spool.unwritten, spool.written, spool.dropped) == (0, 5, 0)


def test_what_the_disk_refuses_can_be_tried_again_alone(tmp_path: Path) -> None:
    """It does not take another message to write what waits."""
    spool = Spool(tmp_path)
    (tmp_path / "spool").rmdir()
    spool.append(MESSAGES[:3])
    (tmp_path / "spool").mkdir()
    spool.append([])
    assert list(read_spool(tmp_path)) == list(enumerate(MESSAGES[:3]))


def test_what_waits_in_memory_is_bounded(tmp_path: Path) -> None:
    """Beyond the bound the oldest that wait go, are counted, and the jump in the numbers tells."""
    spool = Spool(tmp_path, segment_bytes=200, unwritten_bytes_max=1000)
    spool.append(MESSAGES[:10])
    os.rename(tmp_path / "spool", tmp_path / "away")
    spool.append(MESSAGES[10:12])  # the open segment is full, and another cannot be made
    for number in range(12, 60):
        spool.append([MESSAGES[number]])
    os.rename(tmp_path / "away", tmp_path / "spool")
    spool.append(MESSAGES[60:62])
    read = list(read_spool(tmp_path))
    assert [entry.frames for entry in read] == [MESSAGES[entry.seq] for entry in read]
    seqs = [entry.seq for entry in read]
    jumps = [at for at in range(1, len(seqs)) if seqs[at] != seqs[at - 1] + 1]
    assert len(jumps) == 1 and seqs[0] == 0 and seqs[-1] == 61
    missing = seqs[jumps[0]] - seqs[jumps[0] - 1] - 1
    assert spool.dropped == missing > 0
    # An entry of a number of two digits has 52 bytes.
    assert seqs[jumps[0]] == 60 - 1000 // 52


def test_what_was_discarded_is_counted(tmp_path: Path) -> None:
    """Discarding what waits for the disk returns how many of the last messages cannot be read."""
    spool = spool_of(tmp_path)
    spool.close()
    os.rename(tmp_path / "spool", tmp_path / "away")
    spool.append(MESSAGES[10:15])
    assert spool.discard_unwritten() == 5
    assert (spool.unwritten, spool.dropped) == (0, 5)


FULL_DISK = """
import json, resource, sys
from pathlib import Path
from himalia.keeper.spool import Spool

spool = Spool(Path(sys.argv[1]))
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
spool.append([[b"%d" % number] for number in range(100)])
written, size_bytes = spool.written, spool.size_bytes
spool.append([[b"still full"]])
waiting = spool.unwritten
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
spool.append([[b"room again"]])
print(json.dumps([written, size_bytes, waiting, spool.unwritten, spool.dropped, spool.end]))
"""


def test_a_full_disk_is_survived(tmp_path: Path) -> None:
    """What fitted is whole, and when there is room again the rest follows: nothing is lost or out of order."""
    answer = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], check=True, capture_output=True, timeout=30
    )
    written, size_bytes, waiting, unwritten, dropped, end = json.loads(answer.stdout)
    assert 0 < written < 100 and 900 < size_bytes <= 1000
    assert waiting == 101 - written
    texts = [*(b"%d" % number for number in range(100)), b"still full", b"room again"]
    assert list(read_spool(tmp_path)) == [(seq, [text]) for seq, text in enumerate(texts)]
    assert (unwritten, dropped, end) == (0, 0, 102)


# A reader that goes along


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(1, 200)), max_size=30),
    segment_bytes=st.integers(50, 1000),
)
def test_a_reader_that_goes_along_misses_nothing(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, int, int]], segment_bytes: int
) -> None:
    """However writing and reading interleave, and whatever the limits, each message is read once and in order."""
    directory = tmp_path_factory.mktemp("spool")
    spool, reader = Spool(directory, segment_bytes=segment_bytes), SpoolReader(directory)
    read: list[Spooled] = []
    written = 0
    for count, messages_max, bytes_max in steps:
        spool.append([[b"%d" % number] for number in range(written, written + count)])
        written += count
        if messages_max:
            batch = reader.read(messages_max, bytes_max)
            assert len(batch) <= messages_max
            read += batch
            assert reader.is_at_end <= (len(read) == written)
    read += reader.read()
    assert reader.is_at_end
    assert read == [(number, [b"%d" % number]) for number in range(written)]
    reader.close()


def test_reading_on_costs_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that goes along never reads a byte twice, however much is in the segment already."""
    taken = 0
    pread = os.pread

    def counted(descriptor: int, size: int, position: int) -> bytes:
        nonlocal taken
        data = pread(descriptor, size, position)
        taken += len(data)
        return data

    monkeypatch.setattr(spool_module.os, "pread", counted)
    spool, reader = Spool(tmp_path), SpoolReader(tmp_path)
    for message in MESSAGES:
        spool.append([message])
        assert [entry.frames for entry in reader.read()] == [message]
        assert reader.read() == []
    assert taken == spool.size_bytes
    reader.close()


def test_a_message_larger_than_what_is_read_at_once(tmp_path: Path) -> None:
    """It is read whole, and so are its neighbours."""
    messages = [[b"before"], [b"x" * (3 * READ_BYTES), b"y"], [b"after"]]
    spool = Spool(tmp_path)
    spool.append(messages)
    reader = SpoolReader(tmp_path)
    assert reader.read() == list(enumerate(messages))
    reader.close()


def test_a_part_of_a_message_is_not_there_yet(tmp_path: Path) -> None:
    """While the last message is being written the reader waits; as soon as it is whole, it is read, once."""
    spool_of(tmp_path).close()
    (path,) = segments(tmp_path)
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        reader = SpoolReader(tmp_path)
        read = reader.read()
        assert reader.is_at_end and len(read) == length * 10 // len(data)
        assert reader.read() == []
        path.write_bytes(data)
        read += reader.read()
        assert read == list(enumerate(MESSAGES[:10]))
        reader.close()


def test_a_part_of_a_message_before_another_segment_is_over(tmp_path: Path) -> None:
    """A keeper that was killed while it wrote leaves a part of a message, and the next begins another segment."""
    spool_of(tmp_path).close()
    (path,) = segments(tmp_path)
    path.write_bytes(path.read_bytes()[:-3])
    reader = SpoolReader(tmp_path)
    assert [entry.seq for entry in reader.read()] == list(range(9))
    spool = Spool(tmp_path)
    spool.append([[b"later"]])
    assert reader.read() == [(10, [b"later"])]
    reader.close()


def test_a_message_is_written_and_its_segment_ended_at_that_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is written between the look at a segment and the look for the next is not passed over."""
    spool = Spool(tmp_path, segment_bytes=200)
    spool.append(MESSAGES[:2])
    reader = SpoolReader(tmp_path)
    assert len(reader.read()) == 2
    firsts = spool_module._segment_starts

    def at_that_moment(directory: str) -> list[int]:
        spool.append(MESSAGES[spool.end : spool.end + 10])
        return firsts(directory)

    monkeypatch.setattr(spool_module, "_segment_starts", at_that_moment)
    read = reader.read(messages_max=10)
    assert read == list(enumerate(MESSAGES))[2:12]
    reader.close()


def test_a_reader_that_is_passed_goes_on_with_what_is_left(tmp_path: Path) -> None:
    """What was removed before it was read is missing, as the jump tells, but the segment in hand is read to its end."""
    spool = Spool(tmp_path, bytes_max=2000)
    spool.append(MESSAGES[:20])
    reader = SpoolReader(tmp_path)
    first = reader.read(messages_max=1)
    in_hand = int(segments(tmp_path)[1].stem)
    spool.append(MESSAGES[20:])
    assert int(segments(tmp_path)[0].stem) > in_hand
    read = [*first, *reader.read()]
    assert [entry.frames for entry in read] == [MESSAGES[entry.seq] for entry in read]
    assert [entry.seq for entry in read] == [*range(in_hand), *range(spool.first, 100)]
    reader.close()


def test_an_empty_segment_that_begins_anew_is_found(tmp_path: Path) -> None:
    """A keeper that was killed before it wrote leaves an empty file; the next makes another of the same name."""
    spool_of(tmp_path).close()
    (tmp_path / "spool" / "00000010.seg").touch()
    reader = SpoolReader(tmp_path)
    assert len(reader.read()) == 10
    assert reader.read() == []
    spool = Spool(tmp_path)
    spool.append([[b"later"]])
    assert reader.read() == [(10, [b"later"])]
    reader.close()


def test_a_reader_that_was_closed_goes_on(tmp_path: Path) -> None:
    """It opens the file again behind what it gave; so does another one that is told the number."""
    spool = Spool(tmp_path, segment_bytes=300)
    spool.append(MESSAGES[:50])
    reader = SpoolReader(tmp_path)
    read = reader.read(messages_max=33)
    reader.close()
    spool.append(MESSAGES[50:])
    other = SpoolReader(tmp_path, after=32)
    rest = list(enumerate(MESSAGES))[33:]
    assert reader.read() == other.read() == rest
    assert read + rest == list(enumerate(MESSAGES))
    reader.close()
    other.close()


def test_a_length_that_is_damaged_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A length of gigabytes, behind which there is nothing of the kind, takes no memory and ends the segment."""
    spool = Spool(tmp_path)
    spool.append([[b"x" * (2 * READ_BYTES)]])
    spool.close()
    (path,) = segments(tmp_path)
    path.write_bytes(b"\xff\xff\xff\xff" + path.read_bytes()[4:])
    asked: list[int] = []
    pread = os.pread

    def noted(descriptor: int, size: int, position: int) -> bytes:
        asked.append(size)
        return pread(descriptor, size, position)

    monkeypatch.setattr(spool_module.os, "pread", noted)
    assert list(read_spool(tmp_path)) == []
    assert max(asked) <= READ_BYTES
