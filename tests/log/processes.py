"""Programs that the tests run in processes of their own, in order to kill them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

HOLDER = """
import asyncio, sys
from himalia.log.sqlite import SqliteLog

async def main():
    log = SqliteLog(sys.argv[1])
    await log.open()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await log.close()

asyncio.run(main())
"""

# Takes the log when its standard input says so, and says whether it got it.
CONTENDER = """
import asyncio, sys
from himalia.errors import LogLocked
from himalia.log.sqlite import SqliteLog

async def main():
    print("waiting", flush=True)
    sys.stdin.readline()
    log = SqliteLog(sys.argv[1])
    try:
        await log.open()
    except LogLocked:
        print("refused", flush=True)
    else:
        print("owner", flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""

# Appends without pause; says of every record where it is, but only once it is acknowledged.
APPENDER = """
import asyncio, sys
from himalia.log import Batch, LogOptions
from himalia.log.sqlite import SqliteLog
from himalia.record import Draft, Retention

async def append(log, worker):
    n = 0
    while True:
        ids = [f"{worker}-{n + i}" for i in range(worker + 1)]
        done = await log.append(Batch("t", [Draft(id, b"x" * 300) for id in ids]))
        n += len(ids)
        print("".join(f"{offset} {id}\\n" for offset, id in zip(done.offsets, ids)), end="", flush=True)

async def main():
    log = SqliteLog(sys.argv[1], LogOptions(retention_interval_s=0.01))
    await log.open()
    await log.create("t")
    await log.create("cut", Retention(count=5))
    async def churn():
        n = 0
        while True:
            await log.append(Batch("cut", [Draft(f"{n}-{i}", b"y") for i in range(600)]))
            n += 1
    await asyncio.gather(churn(), *[append(log, worker) for worker in range(4)])

asyncio.run(main())
"""

# Holds the log, forks a child that lives until its standard input ends, and waits.
FORKER = """
import asyncio, os, sys
from himalia.log.sqlite import SqliteLog

async def main():
    log = SqliteLog(sys.argv[1])
    await log.open()
    if os.fork() == 0:
        os.write(1, b"child\\n")
        os.read(0, 1)
        os._exit(0)
    os.write(1, b"parent\\n")
    await asyncio.Event().wait()

asyncio.run(main())
"""

# Runs into a limit on the size of files, as on a disk with a quota; then has it lifted.
LIMITED = """
import asyncio, resource, sys
from himalia.errors import LogUnavailable
from himalia.log import Batch, LogOptions
from himalia.log.sqlite import SqliteLog
from himalia.record import Draft

async def fill(log):
    n = 0
    while True:
        try:
            await log.append(Batch("t", [Draft(f"{n}", b"x" * 20_000)]))
        except LogUnavailable:
            return n
        n += 1

async def main():
    log = SqliteLog(sys.argv[1], LogOptions(probe_interval_s=0.01))
    await log.open()
    await log.create("t")
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    stored = await fill(log)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    while not (await log.health()).ok:
        await asyncio.sleep(0.01)
    again = await log.append(Batch("t", [Draft(f"{stored}", b"y")]))
    print(stored, again.offsets[0], (await log.info("t")).end, flush=True)
    await log.close()

asyncio.run(main())
"""

BACKUP = """
import sys
from pathlib import Path
from himalia.log.sqlite.backup import backup

print(backup(Path(sys.argv[1]), Path(sys.argv[2])).records, flush=True)
"""


def run(program: str, *paths: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, paths)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, "the process ended early"
    return line.strip()
