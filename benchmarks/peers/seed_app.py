"""A publish/subscribe broker in memory, in idiomatic FastAPI.

A queue and a task per subscriber; a publish puts the event into every queue, dropping the oldest when one is
full, and each task encodes and sends with `send_json`. History is a deque of 100. Nothing is stored.

So that the figures measure the design and not a mistake, an event is built once per publish (each subscriber still
encodes it), and no lock is held while sending.

Run as `python -m benchmarks.peers.seed_app PORT`.
"""

import asyncio
import contextlib
import sys
import time
import uuid
from collections import deque
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Literal

import uvicorn
from fastapi import FastAPI, HTTPException, WebSocket, WebSocketDisconnect
from pydantic import BaseModel, ValidationError

QUEUE_MAX = 100
HISTORY_MAX = 100

Json = dict[str, Any]


class ErrorCode(StrEnum):
    BAD_REQUEST = "BAD_REQUEST"
    TOPIC_NOT_FOUND = "TOPIC_NOT_FOUND"


class MessagePayload(BaseModel):
    id: str
    payload: Any


class ClientMessage(BaseModel):
    type: Literal["subscribe", "unsubscribe", "publish", "ping"]
    topic: str | None = None
    message: MessagePayload | None = None
    client_id: str | None = None
    last_n: int = 0
    request_id: str | None = None


class CreateTopicRequest(BaseModel):
    name: str


class CreateTopicResponse(BaseModel):
    status: str
    topic: str


def now() -> str:
    return datetime.now(UTC).isoformat()


class Subscriber:
    def __init__(self, client_id: str, websocket: WebSocket) -> None:
        self.client_id = client_id
        self.websocket = websocket
        self.message_queue: asyncio.Queue[Json] = asyncio.Queue(QUEUE_MAX)
        self.active = True
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.task = asyncio.create_task(self._deliver())

    def stop(self) -> None:
        self.active = False
        if self.task is not None:
            self.task.cancel()

    def enqueue_message(self, event: Json) -> None:
        try:
            self.message_queue.put_nowait(event)
        except asyncio.QueueFull:
            self.message_queue.get_nowait()
            self.message_queue.put_nowait(event)

    async def _deliver(self) -> None:
        with contextlib.suppress(WebSocketDisconnect, RuntimeError):
            while self.active:
                await self.websocket.send_json(await self.message_queue.get())


class Topic:
    def __init__(self, name: str) -> None:
        self.name = name
        self.subscribers: dict[str, Subscriber] = {}
        self.message_history: deque[Json] = deque(maxlen=HISTORY_MAX)
        self.message_count = 0
        self.lock = asyncio.Lock()

    async def add_subscriber(self, subscriber: Subscriber) -> None:
        async with self.lock:
            self.subscribers[subscriber.client_id] = subscriber

    async def remove_subscriber(self, client_id: str) -> None:
        async with self.lock:
            subscriber = self.subscribers.pop(client_id, None)
        if subscriber is not None:
            subscriber.stop()

    async def publish_message(self, message: Json) -> None:
        event = {"type": "event", "topic": self.name, "message": message, "ts": now()}
        async with self.lock:
            self.message_history.append(event)
            self.message_count += 1
            for subscriber in self.subscribers.values():
                subscriber.enqueue_message(event)

    def history(self, last_n: int) -> list[Json]:
        return list(self.message_history)[-last_n:] if last_n > 0 else []


class PubSubManager:
    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.lock = asyncio.Lock()
        self.start_time = time.time()

    async def create_topic(self, name: str) -> bool:
        async with self.lock:
            if name in self.topics:
                return False
            self.topics[name] = Topic(name)
            return True

    async def topic(self, name: str | None) -> Topic | None:
        async with self.lock:
            return self.topics.get(name or "")


app = FastAPI()
manager = PubSubManager()


@app.post("/topics", status_code=201)
async def create_topic(request: CreateTopicRequest) -> CreateTopicResponse:
    if not await manager.create_topic(request.name):
        raise HTTPException(409, "topic exists")
    return CreateTopicResponse(status="created", topic=request.name)


@app.get("/health")
async def health() -> Json:
    subscribers = sum(len(topic.subscribers) for topic in manager.topics.values())
    uptime_s = int(time.time() - manager.start_time)
    return {"uptime_sec": uptime_s, "topics": len(manager.topics), "subscribers": subscribers}


@app.get("/stats")
async def stats() -> Json:
    return {
        "topics": {
            topic.name: {"messages": topic.message_count, "subscribers": len(topic.subscribers)}
            for topic in manager.topics.values()
        }
    }


async def send_ack(websocket: WebSocket, message: ClientMessage) -> None:
    answer = {"type": "ack", "request_id": message.request_id, "topic": message.topic}
    await websocket.send_json({**answer, "status": "ok", "ts": now()})


async def send_error(websocket: WebSocket, request_id: str | None, code: ErrorCode, text: str) -> None:
    error = {"code": code, "message": text}
    await websocket.send_json({"type": "error", "request_id": request_id, "error": error, "ts": now()})


async def handle_subscribe(websocket: WebSocket, message: ClientMessage, topic: Topic) -> Subscriber:
    subscriber = Subscriber(message.client_id or str(uuid.uuid4()), websocket)
    await topic.add_subscriber(subscriber)
    await send_ack(websocket, message)
    for event in topic.history(message.last_n):
        await websocket.send_json(event)
    subscriber.start()
    return subscriber


async def handle_publish(websocket: WebSocket, message: ClientMessage, topic: Topic) -> None:
    if message.message is None:
        await send_error(websocket, message.request_id, ErrorCode.BAD_REQUEST, "message is needed")
        return
    try:
        uuid.UUID(message.message.id)
    except ValueError:
        await send_error(websocket, message.request_id, ErrorCode.BAD_REQUEST, "message.id must be a UUID")
        return
    await topic.publish_message(message.message.model_dump())
    await send_ack(websocket, message)


async def route(websocket: WebSocket, message: ClientMessage, subscriptions: dict[str, Subscriber]) -> None:
    if message.type == "ping":
        await websocket.send_json({"type": "pong", "request_id": message.request_id, "ts": now()})
        return
    topic = await manager.topic(message.topic)
    if topic is None:
        await send_error(websocket, message.request_id, ErrorCode.TOPIC_NOT_FOUND, "no such topic")
    elif message.type == "publish":
        await handle_publish(websocket, message, topic)
    elif message.type == "subscribe":
        subscriptions[topic.name] = await handle_subscribe(websocket, message, topic)
    else:
        await topic.remove_subscriber(message.client_id or "")
        await send_ack(websocket, message)


@app.websocket("/ws")
async def websocket_endpoint(websocket: WebSocket) -> None:
    await websocket.accept()
    subscriptions: dict[str, Subscriber] = {}
    try:
        while True:
            data = await websocket.receive_json()
            try:
                message = ClientMessage(**data)
            except ValidationError as error:
                await send_error(websocket, None, ErrorCode.BAD_REQUEST, str(error))
                continue
            await route(websocket, message, subscriptions)
    except WebSocketDisconnect:
        pass
    finally:
        for name, subscriber in subscriptions.items():
            await manager.topics[name].remove_subscriber(subscriber.client_id)


if __name__ == "__main__":
    port = int(sys.argv[1])
    uvicorn.run(app, host="127.0.0.1", port=port, loop="uvloop", http="httptools", log_level="warning")
