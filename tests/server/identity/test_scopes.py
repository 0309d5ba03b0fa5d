"""Message ids and producers belong to the caller that used them."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

from himalia.client import SyncClient
from tests.servers import RunningServer

KEYS = "".join(
    f'[keys.{name}]\nkey = "{name}-0123456789-0123456789"\npublish = [">"]\nsubscribe = [">"]\nmanage = [">"]\n'
    for name in ("importer", "other")
)


def test_another_key_takes_nothing(serve: Callable[..., RunningServer], tmp_path: Path) -> None:
    """Another key that uses a producer's name, or a message id, of this one keeps nothing of it from being stored;
    a repeat of the same caller is recognised, over REST and WebSocket, and after a restart."""
    keys = tmp_path / "keys.toml"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    path = "/topics/orders/messages"
    message = {"id": str(uuid.uuid4()), "payload": 1}

    def headers(name: str) -> dict[str, str]:
        return {"X-API-Key": f"{name}-0123456789-0123456789"}

    server = serve(keys_file=keys)
    with server.http(headers=headers("importer")) as importer, server.http(headers=headers("other")) as other:
        importer.post("/topics", json={"name": "orders"}).raise_for_status()
        for http, sequence in ((importer, 1), (other, (1 << 63) - 1), (importer, 2)):
            query = {"producer": "importer", "sequence": sequence}
            answer = http.post(path, params=query, json=[{"payload": sequence}]).json()
            assert (answer["count"], answer["duplicates"]) == (1, 0)
        offsets = [http.post(path, json=message).json()["offset"] for http in (other, importer, importer)]
        assert offsets == [3, 4, 4]
    server.stop()

    server = serve(keys_file=keys)
    with server.http(headers=headers("importer")) as importer:
        assert importer.post(path, json=message).json()["offset"] == 4
        query = {"producer": "importer", "sequence": 2}
        assert importer.post(path, params=query, json=[{"payload": 2}]).json()["duplicates"] == 1
    for name, offset in (("other", 3), ("importer", 4)):
        with SyncClient(server.url, headers(name)["X-API-Key"]) as client:
            assert client.publish("orders", 1, id=str(message["id"])).offset == offset
