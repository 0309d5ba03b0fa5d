"""The spool: all that was published comes back in order, within its bound, whatever the disk does."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from himalia.kernels.keeper.spool import Spool, read_spool

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


def test_a_spool_that_cannot_be_written_counts_and_recovers(tmp_path: Path) -> None:
    """Without its directory all is dropped and counted; when it is back, so is the spool."""
    spool = Spool(tmp_path)
    (tmp_path / "spool").rmdir()
    spool.append(MESSAGES[:3])
    assert (spool.dropped, spool.end) == (3, 3)
    (tmp_path / "spool").mkdir()
    spool.append(MESSAGES[3:5])
    assert list(read_spool(tmp_path)) == [(3, MESSAGES[3]), (4, MESSAGES[4])]


FULL_DISK = """
import json, resource, sys
from pathlib import Path
from himalia.kernels.keeper.spool import Spool

spool = Spool(Path(sys.argv[1]))
limits = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
spool.append([[b"%d" % number] for number in range(100)])
dropped = spool.dropped
spool.append([[b"still full"]])
resource.setrlimit(resource.RLIMIT_FSIZE, limits)
spool.append([[b"room again"]])
print(json.dumps([dropped, spool.dropped, spool.end]))
"""


def test_a_full_disk_is_survived(tmp_path: Path) -> None:
    """What fitted is whole, what did not is counted, and when there is room again the spool goes on."""
    answer = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], check=True, capture_output=True, timeout=30
    )
    first_dropped, dropped, end = json.loads(answer.stdout)
    read = list(read_spool(tmp_path))
    kept = 100 - first_dropped
    assert 0 < kept < 100
    assert [entry.frames[0] for entry in read] == [*(b"%d" % number for number in range(kept)), b"room again"]
    assert (dropped, end, read[-1].seq) == (first_dropped + 1, 102, 101)
