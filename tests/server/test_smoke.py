from __future__ import annotations

from tests.servers import RunningServer, ask, hear, publish


async def test_a_published_message_is_acknowledged_and_delivered(server: RunningServer) -> None:
    """Who subscribed before a publish gets it, with the offset that the publisher was told."""
    server.create("orders")
    async with server.connect() as publisher, server.connect() as viewer:
        ack = await ask(viewer, type="subscribe", topic="orders", client_id="viewer")
        assert (ack["type"], ack["offset"]) == ("ack", 0)
        assert await publish(publisher, "orders", {"sku": "A-17"}) == [0]
        event = await hear(viewer)
        assert event["message"]["payload"] == {"sku": "A-17"}
        assert (event["type"], event["topic"], event["offset"]) == ("event", "orders", 0)
