"""A server with kernels and nothing else, told what to do by JSON lines on stdin: made to be killed.

{"op": "start"} {"op": "attach", "path"} {"op": "execute", "kernel", "code", ...} {"op": "close"} ...
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from himalia.kernels.request import Code
from tests.kernels.hosts import Opened, opened


async def answer(server: Opened, asked: dict[str, Any]) -> dict[str, Any]:
    host = server.host
    match asked.pop("op"):
        case "ready":
            return {"kernels": sorted(host.kernels)}
        case "start":
            kernel = await host.start(asked.get("name"), owner=asked.get("owner"))
            return {"kernel": kernel.id, "pid": kernel.model().pid}
        case "attach":
            return {"kernel": (await host.attach(asked["path"])).id}
        case "execute":
            request = await host.get(asked.pop("kernel")).execute(Code(**asked))
            return {"request": request.id}
        case "printed":
            # Until a cell has said so much: what it has said by then is committed, and more is on its way.
            return {"end": await _until_printed(server, asked["kernel"], asked["text"])}
        case "close":
            await server.close()
            return {}
        case op:
            return {"error": f"no such op: {op}"}


async def _until_printed(server: Opened, kernel_id: str, text: str) -> int:
    topic, start = f"kernels.{kernel_id}", 0
    while True:
        chunk = await server.log.read(topic, start, limit=1000)
        for record in chunk.records:
            start = record.offset + 1
            if text.encode() in record.payload and b'"stream"' in record.headers:
                return start
        await asyncio.sleep(0.01)


async def main(url: str, settings: str) -> None:
    server = await opened(url, **json.loads(settings))
    while line := await asyncio.to_thread(sys.stdin.readline):
        try:
            said = await answer(server, json.loads(line))
        except Exception as error:
            said = {"error": repr(error)}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
