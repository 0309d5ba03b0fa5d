"""Running the examples of a Markdown file against a server. ``docs/protocol.md`` says how to read them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

import httpx
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.docs.markdown import Block
from tests.servers import DEADLINE_S, RunningServer

OTHERS = "..."
"""The key that an object of an answer has in place of fields that are left out."""
_HEADER = re.compile(r"([A-Z][A-Za-z-]*): (.*)")
_VARIABLE = re.compile(r"\$[a-z]+")


class Mismatch(AssertionError):
    """What came is not what the document says."""


class Step(NamedTuple):
    sends: bool
    text: str
    line: int


def steps(block: Block) -> Iterator[Step]:
    """The lines of an example, those that continue one joined to it."""
    step: Step | None = None
    for number, line in enumerate(block.lines, block.line):
        if line.startswith((">", "<")):
            if step is not None:
                yield step
            step = Step(line[0] == ">", line[2:], number)
        elif line.startswith("  ") and step is not None:
            step = step._replace(text=f"{step.text} {line.strip()}")
        else:
            raise ValueError(f"line {number} begins with neither '>' nor '<' nor two blanks: {line!r}")
    if step is not None:
        yield step


def expected_json(text: str) -> Any:
    return json.loads(re.sub(r",\s*\.\.\.\s*}", f', "{OTHERS}": 0}}', text))


class Values:
    """What ``$name`` stands for."""

    def __init__(self, known: Mapping[str, Any] | None = None) -> None:
        self._known: dict[str, Any] = dict(known or {})

    def fill_in(self, text: str) -> str:
        return _VARIABLE.sub(lambda found: str(self._known.get(found[0], found[0])), text)

    def check(self, wanted: Any, given: Any, where: str = "") -> None:
        """``Mismatch`` unless ``given`` is what the document wants."""
        if wanted == "*":
            return
        if isinstance(wanted, str) and _VARIABLE.fullmatch(wanted):
            wanted = self._known.setdefault(wanted, given)
        if isinstance(wanted, dict) and isinstance(given, dict):
            self._check_object(dict(wanted), given, where)
        elif isinstance(wanted, list) and isinstance(given, list) and len(wanted) == len(given):
            for index, (one, other) in enumerate(zip(wanted, given, strict=True)):
                self.check(one, other, f"{where}[{index}]")
        elif wanted != given:
            raise Mismatch(f"{where or 'the answer'} is {given!r}, not {wanted!r}")

    def _check_object(self, wanted: dict[str, Any], given: dict[str, Any], where: str) -> None:
        is_open = wanted.pop(OTHERS, None) is not None
        if missing := wanted.keys() - given.keys():
            raise Mismatch(f"{sorted(missing)} missing{f' in {where}' if where else ''}: {given}")
        if not is_open and (added := given.keys() - wanted.keys()):
            raise Mismatch(f"{sorted(added)} not documented{f' in {where}' if where else ''}: {given}")
        for key, value in wanted.items():
            self.check(value, given[key], f"{where}.{key}" if where else key)


class Examples:
    """A run through one document. ``server`` gives the one that a block's marks ask for; ``known`` are values of
    which the document speaks from the beginning."""

    def __init__(
        self, server: Callable[[Block], RunningServer], known: Mapping[str, Any] | None = None
    ) -> None:
        self._server = server
        self._values = Values(known)
        self._connections: dict[str, ClientConnection] = {}
        self._open = ExitStack()

    def run(self, name: str, found: Iterable[Block]) -> int:
        """Run them in order; returns how many there were. A failure names file and line."""
        kinds = {"ws": self._run_ws, "http": self._run_http, "sse": self._run_sse}
        count = 0
        for block in found:
            run = kinds.get(block.kind)
            if run is not None:
                at = [block.line]
                try:
                    run(block, at)
                except (Mismatch, TimeoutError, ValueError, ConnectionClosed, httpx.HTTPError) as error:
                    reason = str(error) or f"nothing came ({type(error).__name__})"
                    raise AssertionError(f"{name}:{at[0]}: {reason}") from error
                count += 1
        return count

    def close(self) -> None:
        self._open.close()

    # WebSocket

    def _run_ws(self, block: Block, at: list[int]) -> None:
        name = block.info.partition(" ")[2]
        ws = self._connections.get(name)
        if ws is None:
            ws = self._open.enter_context(connect(self._server(block).ws_url, compression=None))
            self._connections[name] = ws
        for step in steps(block):
            at[0] = step.line
            if step.sends:
                ws.send(self._values.fill_in(step.text))
            else:
                self._values.check(expected_json(step.text), _hear(ws))
        if not name:
            _check_silent(ws)
            self._connections.pop(name).close()

    # HTTP

    def _run_http(self, block: Block, at: list[int]) -> None:
        request, answer = _split(block)
        with self._client(block) as http:
            response = http.send(self._request(http, request))
        at[0] = answer[0].line
        status, headers, body = _parse_answer(answer)
        self._check_head(status, headers, response)
        if not body:
            if response.content:
                raise Mismatch(f"a body comes, which the example does not show: {response.text}")
            return
        if len(body) > 1:
            wanted: Any = [expected_json(line) for line in body]
            given: Any = [json.loads(line) for line in response.text.splitlines()]
        else:
            wanted, given = expected_json(body[0]), response.json()
        self._values.check(wanted, given)

    def _run_sse(self, block: Block, at: list[int]) -> None:
        request, answer = _split(block)
        status, headers, body = _parse_answer(answer)
        with self._client(block) as http:
            response = http.send(self._request(http, request), stream=True)
            try:
                self._check_head(status, headers, response)
                lines = response.iter_lines()
                first = answer[-1].line - len(body) + 1
                for number, wanted in enumerate(body, first):
                    at[0] = number
                    self._check_sse_line(wanted, next(lines))
            finally:
                response.close()

    def _check_sse_line(self, wanted: str, given: str) -> None:
        if wanted.startswith("data: ") and given.startswith("data: "):
            self._values.check(expected_json(wanted[6:]), json.loads(given[6:]))
        elif wanted != given:
            raise Mismatch(f"{given!r}, not {wanted!r}")

    def _client(self, block: Block) -> httpx.Client:
        return httpx.Client(base_url=self._server(block).url, timeout=DEADLINE_S, trust_env=False)

    def _request(self, http: httpx.Client, request: list[Step]) -> httpx.Request:
        method, path, *inline = self._values.fill_in(request[0].text).split(" ", 2)
        headers: dict[str, str] = {}
        body = inline
        for step in request[1:]:
            header = _HEADER.fullmatch(step.text)
            if header:
                headers[header[1]] = self._values.fill_in(header[2])
            else:
                body.append(self._values.fill_in(step.text))
        if body:
            headers.setdefault("Content-Type", "application/json")
        return http.build_request(method, path, headers=headers, content="\n".join(body) or None)

    def _check_head(self, status: int, headers: dict[str, str], response: httpx.Response) -> None:
        if response.status_code != status:
            raise Mismatch(f"status {response.status_code}, not {status}: {response.read().decode()}")
        for name, value in headers.items():
            self._values.check(value, response.headers.get(name), name)


def _hear(ws: ClientConnection) -> Any:
    """The next message that is not a heartbeat."""
    while True:
        message = json.loads(ws.recv(DEADLINE_S))
        if message.get("msg") != "ping":
            return message


def _check_silent(ws: ClientConnection) -> None:
    """Whether everything that came is in the example: the next answer is the one to a ping."""
    ws.send('{"type": "ping", "request_id": "the end"}')
    message = _hear(ws)
    if message.get("request_id") != "the end":
        raise Mismatch(f"another message comes, which the example does not show: {message}")


def _split(block: Block) -> tuple[list[Step], list[Step]]:
    everything = list(steps(block))
    request = [step for step in everything if step.sends]
    answer = [step for step in everything if not step.sends]
    if everything != request + answer or not request or not answer:
        raise ValueError("an example has lines with '>' and then lines with '<'")
    return request, answer


def _parse_answer(answer: list[Step]) -> tuple[int, dict[str, str], list[str]]:
    status, _, inline = answer[0].text.partition(" ")
    headers: dict[str, str] = {}
    body = [inline] if inline else []
    for step in answer[1:]:
        header = None if body else _HEADER.fullmatch(step.text)
        if header:
            headers[header[1]] = header[2]
        else:
            body.append(step.text)
    return int(status), headers, body
