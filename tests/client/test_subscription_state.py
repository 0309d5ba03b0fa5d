"""Where a subscription stands, without a server."""

from __future__ import annotations

import msgspec
import pytest

from himalia.client.events import Dropped, Event, FilterFailure, Gap, TopicCreated, TopicDeleted
from himalia.client.subscription_state import SubscriptionState
from himalia.errors import SlowConsumer, SubscriptionReplaced
from himalia.protocol import ClientMessage, ErrorBody, Message, ServerMessage
from himalia.record import Position


def _progress(topic: str = "orders", **asked: object) -> SubscriptionState:
    return SubscriptionState(ClientMessage("subscribe", topic=topic, client_id="me", **asked))


def _event(topic: str, offset: int) -> ServerMessage:
    message = Message("id", msgspec.Raw(b"1"))
    return ServerMessage(
        "event", topic=topic, offset=offset, ts="2026-11-15T20:00:00.000000Z", message=message
    )


def _ack(**fields: object) -> ServerMessage:
    return ServerMessage("ack", status="ok", **fields)


def test_the_first_request_is_what_was_asked() -> None:
    """Before the first ack the request is the user's own, however often it is sent."""
    progress = _progress(last_n=5)
    assert progress.request().last_n == 5
    assert progress.request().start is None
    assert progress.request().policy is None


@pytest.mark.parametrize(
    ("asked", "policy"),
    [
        ({}, "drop_oldest"),
        ({"last_n": 5}, "drop_oldest"),
        ({"start": 0}, "lossless"),
        ({"since": "2026-01-01"}, "lossless"),
        ({"start": 0, "policy": "disconnect"}, "disconnect"),
        ({"policy": "lossless"}, "lossless"),
    ],
)
def test_a_resume_asks_for_the_next_offset_and_the_same_policy(asked: dict[str, object], policy: str) -> None:
    """A resume says where it goes on, with the epoch, and the policy that the server chose or the user did."""
    progress = _progress(**asked)
    progress.on_ack(_ack(offset=7, epoch="e"))
    progress.on_message(_event("orders", 7))
    request = progress.request()
    assert (request.start, request.epoch, request.policy) == (8, "e", policy)
    assert (request.last_n, request.since, request.client_id) == (None, None, "me")


def test_what_came_before_is_not_given_again() -> None:
    """An event below the position is dropped, so nothing is yielded twice whatever the server does."""
    progress = _progress()
    progress.on_ack(_ack(offset=3, epoch="e"))
    assert isinstance(progress.on_message(_event("orders", 3)), Event)
    assert progress.on_message(_event("orders", 3)) is None
    assert isinstance(progress.on_message(_event("orders", 4)), Event)


def test_notices_move_the_position() -> None:
    """After dropped the position is behind the last one skipped, after a gap it is the first one kept."""
    progress = _progress()
    progress.on_ack(_ack(offset=0, epoch="e"))
    dropped = progress.on_message(
        ServerMessage("info", msg="dropped", topic="orders", first=0, last=9, count=10)
    )
    assert dropped == Dropped("orders", 0, 9, 10)
    assert progress.positions == {"orders": Position(10, "e")}
    gap = progress.on_message(
        ServerMessage("info", msg="gap", topic="orders", requested=10, first=20, end=30)
    )
    assert gap == Gap("orders", 10, 20, 30)
    assert progress.positions == {"orders": Position(20, "e")}


def test_a_pattern_knows_every_topic_it_was_told_of() -> None:
    """The positions of a pattern come from the ack and from topic_created, and go with topic_deleted."""
    progress = _progress("eu.*")
    progress.on_ack(_ack(topics={"eu.a": Position(5, "ea")}))
    created = ServerMessage("info", msg="topic_created", topic="eu.b", offset=0, epoch="eb")
    assert progress.on_message(created) == TopicCreated("eu.b", "eb")
    progress.on_message(_event("eu.b", 0))
    assert msgspec.to_builtins(progress.request().start) == {
        "eu.a": {"offset": 5, "epoch": "ea"},
        "eu.b": {"offset": 1, "epoch": "eb"},
    }
    assert progress.on_message(ServerMessage("info", msg="topic_deleted", topic="eu.a")) == TopicDeleted(
        "eu.a"
    )
    assert list(progress.positions) == ["eu.b"]
    assert not progress.ended


def test_a_topic_made_while_away_is_asked_for_from_its_start() -> None:
    """If a resume's ack starts a new topic behind its first record, the request is made again with that topic."""
    progress = _progress("eu.*")
    progress.on_ack(_ack(topics={"eu.a": Position(5, "ea")}))
    new = {"eu.a": Position(5, "ea"), "eu.b": Position(3, "eb")}
    assert progress.on_ack(_ack(topics=dict(new))) is None
    assert msgspec.to_builtins(progress.request().start) == {
        "eu.a": {"offset": 5, "epoch": "ea"},
        "eu.b": {"offset": 0, "epoch": "eb"},
    }
    new["eu.b"] = Position(0, "eb")
    assert progress.on_ack(_ack(topics=dict(new))) == [TopicCreated("eu.b", "eb")]
    assert progress.on_ack(_ack(topics=new)) == []


def test_a_topic_deleted_while_away_is_told() -> None:
    """A topic that a resume's ack does not name is gone."""
    progress = _progress(">")
    progress.on_ack(_ack(topics={"a": Position(0, "e"), "b": Position(0, "e")}))
    assert progress.on_ack(_ack(topics={"b": Position(0, "e")})) == [TopicDeleted("a")]
    assert not progress.ended


def test_an_ack_without_a_position_means_the_topic_is_gone() -> None:
    """A topic that was deleted while the server looked it up ends the subscription."""
    progress = _progress()
    assert progress.on_ack(_ack()) == [TopicDeleted("orders")]
    assert progress.ended


def test_errors_end_the_subscription_except_a_filters() -> None:
    """A filter that failed on a record is a notice; any other error is raised by its code; so is being replaced."""
    progress = _progress()
    progress.on_ack(_ack(offset=0, epoch="e"))
    failed = ServerMessage("error", topic="orders", error=ErrorBody("FILTER_FAILED", "no such key"))
    assert progress.on_message(failed) == FilterFailure("orders", "no such key")
    with pytest.raises(SlowConsumer):
        progress.on_message(
            ServerMessage("error", topic="orders", error=ErrorBody("SLOW_CONSUMER", "too slow"))
        )
    with pytest.raises(SubscriptionReplaced):
        progress.on_message(ServerMessage("info", msg="replaced", topic="orders", client_id="me"))


@pytest.mark.parametrize("msg", ["ping", "server_shutdown", "something new"])
def test_what_does_not_concern_the_user_is_passed_over(msg: str) -> None:
    """Heartbeats, announcements, and notices of a newer server mean nothing to the application."""
    assert _progress().on_message(ServerMessage("info", msg=msg)) is None
