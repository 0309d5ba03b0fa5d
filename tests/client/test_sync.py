from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from himalia.client import Disconnected, Event, Outgoing, Resumed, SyncClient, TopicCreated, TopicDeleted
from himalia.errors import ConnectionFailed, TopicNotFound
from tests.servers import RunningServer


@pytest.fixture
def client(server: RunningServer) -> Iterator[SyncClient]:
    server.create("orders")
    with SyncClient(server.url) as client:
        yield client


def test_publish_and_subscribe_without_await(client: SyncClient) -> None:
    """The synchronous client does what the asynchronous one does."""
    assert client.publish("orders", {"n": 1}, headers={"a": "b"}).offset == 0
    assert client.publish_many("orders", [2, Outgoing(3)]) == 2
    with client.subscribe("orders", last_n=3) as events:
        found = [next(events) for _ in range(3)]
    assert [event.payload for event in found] == [{"n": 1}, 2, 3]
    assert [event.offset for event in client.read("orders", from_=1)] == [1, 2]


def test_topics_stats_and_health(client: SyncClient) -> None:
    """Everything about topics and the server is there too."""
    assert client.create_topic("more") is True
    assert client.create_topic("more", exist_ok=True) is False
    assert [topic.name for topic in client.topics()] == ["more", "orders"]
    client.delete_topic("more")
    assert list(client.stats().topics) == ["orders"]
    assert client.health().status == "ok"
    with pytest.raises(TopicNotFound):
        client.publish("more", 1)


def test_a_loop_over_events_ends_with_the_topic(client: SyncClient) -> None:
    """``for`` ends when the topic is deleted; notices come inline if asked for."""
    with client.subscribe("orders", notices=True) as items:
        client.publish("orders", 1)
        client.delete_topic("orders")
        found = list(items)
    assert found[0].payload == 1
    assert found[1] == TopicDeleted("orders")


def test_waiting_for_an_event_may_end(client: SyncClient) -> None:
    """``next`` with a time raises TimeoutError, and the event that comes later is not lost."""
    with client.subscribe("orders") as events:
        with pytest.raises(TimeoutError):
            events.next(timeout_s=0.01)
        client.publish("orders", 1)
        assert events.next(timeout_s=20).payload == 1
        assert events.positions["orders"].offset == 1


def test_a_read_may_be_broken_off(client: SyncClient) -> None:
    """Leaving a read in the middle leaves the client usable, and a closed client may be used again."""
    client.publish_many("orders", range(2000))
    for event in client.read("orders"):
        if event.offset == 700:
            break
    client.close()
    assert client.publish("orders", 1).offset == 2000
    assert [event.offset for event in client.read("orders", last=1)] == [2000]


def test_several_threads_may_share_one(client: SyncClient) -> None:
    """Publishes of several threads are all stored; a subscription reads in a thread of its own."""
    seen: list[int] = []

    def read() -> None:
        with client.subscribe("orders", from_=0) as events:
            while len(seen) < 80:
                seen.append(events.next(timeout_s=20).offset)

    threads = [threading.Thread(target=read)]
    threads += [
        threading.Thread(target=lambda: [client.publish("orders", n) for n in range(20)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert seen == list(range(80))


def test_a_resume_across_a_restart(serve: Callable[..., RunningServer]) -> None:
    """The synchronous subscription resumes as the asynchronous one does, because it is the same."""
    server = serve()
    server.create("orders")
    with SyncClient() as client, client.subscribe(">", notices=True) as items:
        client.publish("orders", 1)
        assert items.next(timeout_s=20).payload == 1
        server.stop()
        serve()
        client.create_topic("more")
        client.publish("more", 2)
        found = [items.next(timeout_s=20) for _ in range(4)]
    assert [type(item) for item in found] == [Disconnected, Resumed, TopicCreated, Event]
    assert found[-1].payload == 2


def test_no_thread_is_left_behind(server: RunningServer) -> None:
    """A client that is closed, or could not be entered, leaves no thread."""
    with SyncClient(server.url) as client:
        client.health()
        assert _threads() == 1
    assert _threads() == 0
    server.stop()
    with pytest.raises(ConnectionFailed), SyncClient():
        pass
    assert _threads() == 0


def _threads() -> int:
    return sum(thread.name == "himalia-client" for thread in threading.enumerate())
