"""Generate kernel traffic: the records that a server writes to the topics of several kernels at a time.

The same number, kernels and seed always give the same messages. They have the shape of those that ``himalia.kernels``
writes for ipykernel: a request is queued, sent, busy, echoed, prints, shows, fails or not, replies, is idle and closed.
A few print thousands of lines, some print after their end, some kernels have another client, and some die.
"""

import json
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import chain, islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from himalia.record import Draft, format_ts
from himalia.spark.connector.read import ARROW_SCHEMA
from himalia.spark.transforms.messages import rows_of

START_US = 1_790_000_000_000_000
EPOCH = "0123456789abcdef"
CHUNK = 50_000


class Message(NamedTuple):
    """A record to write. ``ts_us`` is its time of arrival; a real log assigns its own."""

    ts_us: int
    topic: str
    id: str
    headers: dict[str, str]
    payload: str

    def draft(self) -> Draft:
        return Draft(self.id, self.payload.encode(), json.dumps(self.headers, separators=(",", ":")).encode())


def traffic(count: int, *, kernels: int = 8, seed: int = 1) -> Iterator[Message]:
    """Yield this many messages in order of time; the last requests may be incomplete."""
    # No two messages may have the same time, or their order would depend on their content.
    sources = [_Kernel(number, kernels, seed).messages() for number in range(kernels)]
    return islice(merge(*sources), count)


def drafts_by_topic(messages: Iterable[Message]) -> dict[str, list[Draft]]:
    """Group messages by topic, as drafts for a log."""
    found: dict[str, list[Draft]] = {}
    for message in messages:
        found.setdefault(message.topic, []).append(message.draft())
    return found


def write_parquet(path: Path, messages: Iterable[Message]) -> int:
    """Write messages as rows of the table ``messages``; return their number."""
    batches = _row_batches(messages)
    first = next(batches)
    written = 0
    with pq.ParquetWriter(path, first.schema, compression="zstd") as writer:
        for batch in chain([first], batches):
            writer.write_batch(batch)
            written += batch.num_rows
    return written


def _row_batches(messages: Iterable[Message]) -> Iterator[pa.RecordBatch]:
    offsets: dict[str, int] = {}
    source = iter(messages)
    while chunk := list(islice(source, CHUNK)):
        numbers = []
        for message in chunk:
            numbers.append(offsets.get(message.topic, 0))
            offsets[message.topic] = numbers[-1] + 1
        yield rows_of(_records(chunk, numbers), pa.repeat(EPOCH, len(chunk)))


def _records(chunk: list[Message], offsets: list[int]) -> Any:
    columns = [
        pa.array([message.topic for message in chunk], pa.string()),
        pa.array(offsets, pa.int64()),
        pa.array([message.ts_us for message in chunk], pa.int64()).cast(pa.timestamp("us", tz="UTC")),
        pa.array([message.id for message in chunk], pa.string()),
        pa.array([list(message.headers.items()) for message in chunk], pa.map_(pa.string(), pa.string())),
        pa.array([message.payload for message in chunk], pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW_SCHEMA)


CODES = ("x = 1", "for i in range(10):\n    print(i)", "df.describe()", "model.fit(x, y)", "1 / 0", "plot(x)")
LINES = (
    "epoch 3 loss 0.1432 accuracy 0.9311\n",
    "ok\n",
    "reading part-0007 of 128 ...\n",
    "0 1 2 3 4 5 6 7 8 9\n" * 3,
)
ERRORS = ("ValueError", "ZeroDivisionError", "KeyError", "KeyboardInterrupt", "ModuleNotFoundError")
IMAGE = "iVBORw0KGgo" * 150
FRAME = json.dumps("<table>" + "<tr><td>1</td><td>2.5</td><td>abc</td></tr>" * 12 + "</table>")
TRACEBACK = json.dumps(
    ["\u001b[31m-----\u001b[39m", "Traceback (most recent call last)", "line 1\n----> 1 1/0\n"] * 2
)


class _Kernel:
    """One kernel and the records of its topic."""

    def __init__(self, number: int, step_us: int, seed: int) -> None:
        self._random = Random(seed * 1_000_003 + number)
        self._step_us = step_us
        self._us = START_US + number
        self._id = self._uuid()
        self._topic = f"kernels.{self._id}"
        self._session = self._hex(32)
        self._client = self._hex(32)
        self._count = 0
        self._numbered = 0

    def messages(self) -> Iterator[Message]:
        """Yield messages without end."""
        yield self._event("started", "", '"name":"python3","pid":4711')
        yield from self._info()
        while True:
            chance = self._random.random()
            if chance < 0.03:
                yield from self._foreign()
            elif chance < 0.031:
                yield from self._dying()
            else:
                yield from self._request()
            self._pass_time(self._random.expovariate(1 / 400_000))

    # Courses of requests

    def _info(self) -> Iterator[Message]:
        """Himalia's kernel_info request, which is not registered, so these two are orphans."""
        parent = self._uuid()
        yield self._status(parent, "busy")
        yield self._status(parent, "idle")

    def _request(self) -> Iterator[Message]:
        request, code = self._uuid(), self._random.choice(CODES)
        yield from self._begin(request, code)
        yield from self._output(request)
        failed = self._random.random() < 0.08
        if failed:
            yield self._error(request)
        status = "error" if failed else "ok"
        ends = [self._reply(request, status), self._status(request, "idle")]
        yield from ends
        yield self._closed(request, status)
        if self._random.random() < 0.02:
            self._pass_time(self._random.expovariate(1 / 2_000_000))
            yield self._stream(request, "from a thread that was left behind\n")

    def _foreign(self) -> Iterator[Message]:
        request = self._uuid()
        self._count += 1
        yield self._status(request, "busy")
        yield self._input(request, self._random.choice(CODES))
        yield from self._output(request)
        yield self._status(request, "idle")

    def _dying(self) -> Iterator[Message]:
        request = self._uuid()
        yield from self._begin(request, "import os; os.abort()")
        yield self._closed(request, "died", "the kernel died: killed by signal 6")
        yield self._event("died", "", '"reason":"killed by signal 6","returncode":-6')
        yield self._event("restarting", "", '"reason":"it died"')
        yield self._event("restarted", "", '"pid":4712')
        yield from self._info()

    def _begin(self, request: str, code: str) -> Iterator[Message]:
        said = json.dumps(code)
        self._count += 1
        yield self._event(
            "request_queued", request, f'"open_since":0,"code":{said},"priority":0,"timeout_s":null'
        )
        yield self._sent(request, said)
        yield self._status(request, "busy")
        yield self._input(request, code)

    def _output(self, request: str) -> Iterator[Message]:
        random = self._random
        chance = random.random()
        lines = random.randint(300, 3000) if chance < 0.002 else random.choice((0, 1, 1, 2, 3, 5, 8))
        for _ in range(lines):
            yield self._stream(request, random.choice(LINES))
        if chance > 0.95:
            yield self._message(
                "stream", "stream", request, '{"name": "stderr", "text": "warning: deprecated\\n"}'
            )
        if chance < 0.12:
            yield self._display(request)
        if chance > 0.90:
            yield self._message("comm_msg", "comm", request, '{"comm_id": "c1", "data": {"value": 0.5}}')
        if 0.2 < chance < 0.55:
            data = f'{{"text/plain": "   a  b", "text/html": {FRAME}}}'
            content = f'{{"data": {data}, "metadata": {{}}, "execution_count": {self._count}}}'
            yield self._message("execute_result", "execution", request, content)

    # Messages

    def _status(self, request: str, state: str) -> Message:
        return self._message("status", "status", request, f'{{"execution_state": "{state}"}}')

    def _input(self, request: str, code: str) -> Message:
        content = f'{{"code": {json.dumps(code)}, "execution_count": {self._count}}}'
        return self._message("execute_input", "execution", request, content)

    def _stream(self, request: str, text: str) -> Message:
        content = f'{{"name": "stdout", "text": {json.dumps(text)}}}'
        return self._message("stream", "stream", request, content)

    def _display(self, request: str) -> Message:
        data = f'{{"text/plain": "<Figure size 640x480>", "image/png": "{IMAGE}"}}'
        return self._message(
            "display_data", "display", request, f'{{"data": {data}, "metadata": {{}}, "transient": {{}}}}'
        )

    def _error(self, request: str) -> Message:
        ename = self._random.choice(ERRORS)
        content = f'{{"traceback": {TRACEBACK}, "ename": "{ename}", "evalue": "no such thing"}}'
        return self._message("error", "execution", request, content)

    def _reply(self, request: str, status: str) -> Message:
        content = f'{{"status": "{status}", "execution_count": {self._count}, "user_expressions": {{}}, "payload": []}}'
        return self._message("execute_reply", "shell", request, content)

    def _sent(self, request: str, code: str) -> Message:
        us = self._pass_time(300)
        header = (
            f'{{"msg_id":"{request}","msg_type":"execute_request","session":"{self._client}",'
            f'"username":"himalia","date":"{format_ts(us)}","version":"5.4"}}'
        )
        content = (
            f'{{"code":{code},"silent":false,"store_history":true,"user_expressions":{{}},"allow_stdin":false,'
            '"stop_on_error":true}'
        )
        payload = f'{{"header":{header},"parent_header":{{}},"metadata":{{}},"content":{content}}}'
        headers = self._headers("execute_request", "shell", "", "himalia", self._client)
        return Message(us, self._topic, request, headers, payload)

    def _closed(self, request: str, status: str, reason: str = "") -> Message:
        data = f'"open_since":0,"status":"{status}","reason":"{reason}","execution_count":{self._count}'
        times = (
            f'"queued_us":{self._us},"sent_us":{self._us},"started_us":{self._us},"finished_us":{self._us}'
        )
        return self._event("request_closed", request, f"{data},{times}")

    def _event(self, event: str, request: str, data: str) -> Message:
        us, id = self._pass_time(200), self._uuid()
        parent = f'{{"msg_id":"{request}"}}' if request else "{}"
        header = (
            f'{{"msg_id":"{id}","msg_type":"kernel_event","session":"","username":"himalia",'
            f'"date":"{format_ts(us)}","version":"5.4"}}'
        )
        content = f'{{"event":"{event}",{data}}}'
        payload = f'{{"header":{header},"parent_header":{parent},"metadata":{{}},"content":{content}}}'
        return Message(
            us, self._topic, id, self._headers("kernel_event", "kernel", request, "himalia", ""), payload
        )

    def _message(self, msg_type: str, channel: str, request: str, content: str) -> Message:
        us = self._pass_time(self._random.randint(100, 4000))
        self._numbered += 1
        id = f"{self._session}_4711_{self._numbered}"
        date = format_ts(us)
        header = (
            f'{{"msg_id": "{id}", "msg_type": "{msg_type}", "username": "username", "session": "{self._session}", '
            f'"date": "{date}", "version": "5.4"}}'
        )
        parent = (
            f'{{"msg_id": "{request}", "msg_type": "execute_request", "session": "{self._client}", '
            f'"username": "himalia", "date": "{date}", "version": "5.4"}}'
        )
        payload = f'{{"header":{header},"parent_header":{parent},"metadata":{{}},"content":{content}}}'
        headers = self._headers(msg_type, channel, request, "username", self._session)
        return Message(us, self._topic, id, headers, payload)

    def _headers(
        self, msg_type: str, channel: str, parent_id: str, username: str, session: str
    ) -> dict[str, str]:
        return {
            "msg_type": msg_type,
            "channel": channel,
            "parent_id": parent_id,
            "kernel_id": self._id,
            "username": username,
            "session": session,
        }

    def _pass_time(self, us: float) -> int:
        """Advance the time by about this much; each kernel has its own microseconds."""
        self._us += (int(us) // self._step_us + 1) * self._step_us
        return self._us

    def _hex(self, digits: int) -> str:
        return f"{self._random.getrandbits(4 * digits):0{digits}x}"

    def _uuid(self) -> str:
        digits = self._hex(32)
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
