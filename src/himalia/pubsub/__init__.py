"""Publish and subscribe on a log: every subscriber is a set of cursors, one for each topic it follows."""

from himalia.protocol.models import PubSubStats, Rates, SubscriberStats, TopicStats
from himalia.pubsub.manager import PubSubManager
from himalia.pubsub.outlet import Codec, Outlet
from himalia.pubsub.subscription import Cursor, Policy, Start, Subscriber
from himalia.pubsub.topic import Topic

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
    "Topic",
    "TopicStats",
]
