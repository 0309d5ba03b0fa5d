"""The client library: ``Client`` for asyncio, ``SyncClient`` for other code."""

from himalia.client.client import Client
from himalia.client.events import (
    Disconnected,
    Dropped,
    Event,
    FilterFailure,
    Gap,
    Notice,
    Outgoing,
    Published,
    Resumed,
    TopicCreated,
    TopicDeleted,
)
from himalia.client.subscription import Subscription
from himalia.client.sync import SyncClient, SyncSubscription
from himalia.errors import SubscriptionReplaced
from himalia.protocol.models import (
    ClockConfirmed,
    Execution,
    Health,
    Kernel,
    KernelSpecs,
    SessionSummary,
    Stats,
    Submitted,
    TableRows,
    TableSummary,
    TopicSummary,
)

__all__ = [
    "Client",
    "ClockConfirmed",
    "Disconnected",
    "Dropped",
    "Event",
    "Execution",
    "FilterFailure",
    "Gap",
    "Health",
    "Kernel",
    "KernelSpecs",
    "Notice",
    "Outgoing",
    "Published",
    "Resumed",
    "SessionSummary",
    "Stats",
    "Submitted",
    "Subscription",
    "SubscriptionReplaced",
    "SyncClient",
    "SyncSubscription",
    "TableRows",
    "TableSummary",
    "TopicCreated",
    "TopicDeleted",
    "TopicSummary",
]
