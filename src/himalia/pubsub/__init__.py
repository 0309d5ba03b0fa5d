"""Publish and subscribe on a log: every subscriber has a set of cursors, one for each topic it follows."""

from himalia.protocol.models import PubSubStats, Rates, SubscriberStats, TopicStats
from himalia.pubsub.manager import PubSubManager
from himalia.pubsub.outlet import Codec, Outlet
from himalia.pubsub.subscription import Cursor, Start, Subscriber, SubscriptionOptions
from himalia.pubsub.topic import Topic
from himalia.record import Policy

__all__ = [
    "Codec",
    "Cursor",
    "Outlet",
    "Policy",
    "PubSubManager",
    "PubSubStats",
    "Rates",
    "Start",
    "Subscriber",
    "SubscriberStats",
    "SubscriptionOptions",
    "Topic",
    "TopicStats",
]
