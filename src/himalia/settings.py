"""Every setting of the server, in one place.

Each is a flag of ``himalia serve`` and an environment variable: ``message_bytes_max`` is
``--message-bytes-max`` and ``HIMALIA_MESSAGE_BYTES_MAX``. ``docs/operations.md`` explains them; a test keeps
the two in step.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import platformdirs
from pydantic import AfterValidator, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from pydantic_settings import BaseSettings, SettingsConfigDict

from himalia.runtime import checked_warehouse, default_warehouse

KIB, MIB = 1024, 1024 * 1024
Port = Annotated[int, Field(ge=0, le=65535)]


def default_log_url() -> str:
    return f"sqlite://{platformdirs.user_data_path('himalia') / 'log.db'}"


class Settings(BaseSettings):
    """What the server does where nothing else is said. Sizes in bytes, times in seconds, 0 for no limit."""

    model_config = SettingsConfigDict(env_prefix="HIMALIA_", extra="ignore", frozen=True)

    # Where
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: Port = Field(8000, description="Port to listen on; 0 picks a free one.")
    log: str = Field(default_factory=default_log_url, description="The log: sqlite:///path or memory://.")
    warehouse: Annotated[Path, AfterValidator(checked_warehouse)] = Field(
        default_factory=default_warehouse, description="The pipeline's tables, for GET /tables."
    )
    workers: PositiveInt = Field(
        1, description="Server processes; one owns an embedded log, so only 1 works."
    )

    # Trust
    auth: bool = Field(True, description="Ask for a token or key; --no-auth works on loopback only.")
    token: str | None = Field(
        None, description="The token to ask for; made at start and printed if not given."
    )
    keys_file: Path | None = Field(
        None, description="TOML file with keys and their rights; replaces the token."
    )
    allowed_origins: list[str] = Field([], description="Browser origins to accept besides the server's own.")
    allowed_hosts: list[str] = Field([], description="Host names to answer to besides localhost and --host.")
    ssl_certfile: Path | None = Field(None, description="TLS certificate (PEM), with its chain.")
    ssl_keyfile: Path | None = Field(None, description="TLS private key (PEM).")
    ssl_keyfile_password: str | None = Field(None, description="Password of the TLS private key.")

    # The log
    retention_age_s: NonNegativeFloat = Field(7 * 86400, description="Keep records this long; 0 for ever.")
    retention_bytes: NonNegativeInt = Field(0, description="Keep at most this many bytes a topic.")
    retention_count: NonNegativeInt = Field(0, description="Keep at most this many records a topic.")
    retention_wait: NonNegativeFloat = Field(
        1.0, description="How far beyond its limits a topic may go while the pipeline has not read it."
    )
    dedup_window_s: NonNegativeFloat = Field(120, description="Recognise a repeated message id this long.")
    dedup_ids_max: PositiveInt = Field(262_144, description="Recognise repeats among this many latest ids.")

    # Limits
    message_bytes_max: PositiveInt = Field(MIB, description="Largest message from a client.")
    headers_bytes_max: PositiveInt = Field(8 * KIB, description="Largest headers of a message, as JSON.")
    bulk_bytes_max: PositiveInt = Field(256 * MIB, description="Largest body of one REST publish.")
    connections_max: PositiveInt = Field(10_000, description="Most WebSocket and SSE connections at a time.")
    subscriptions_max: PositiveInt = Field(1_000, description="Most subscriptions of one connection.")
    cursors_max: PositiveInt = Field(1_000_000, description="Most topics followed, over all subscriptions.")
    topics_max: PositiveInt = Field(100_000, description="Most topics.")
    topic_length_max: Annotated[int, Field(ge=1, le=255)] = Field(255, description="Longest topic name.")
    publish_rate_max: NonNegativeFloat = Field(0, description="Most publishes a second from one connection.")
    publishes_in_flight_max: PositiveInt = Field(
        4096, description="Publishes of a connection that may wait for their commit before reading pauses."
    )
    in_flight_bytes_max: PositiveInt = Field(
        64 * MIB, description="Bytes of all connections that may wait for their commit before reading pauses."
    )
    last_n_max: NonNegativeInt = Field(1_000_000, description="Largest last_n of a subscription.")
    filter_length_max: PositiveInt = Field(2_048, description="Longest content filter, in characters.")

    filters_max: PositiveInt = Field(256, description="Most distinct content filters in use at a time.")

    # Delivery
    subscriber_limit: PositiveInt = Field(100, description="Records a subscriber may fall behind by default.")
    subscriber_limit_max: PositiveInt = Field(
        1_000_000, description="Largest limit a subscriber may ask for."
    )
    write_buffer_bytes: PositiveInt = Field(
        64 * KIB, description="Unsent bytes at which a connection is full."
    )
    chunk_bytes: PositiveInt = Field(256 * KIB, description="Bytes written to one subscriber in one turn.")
    tail_records: PositiveInt = Field(1024, description="Recent records of a followed topic kept in memory.")
    tail_bytes: PositiveInt = Field(
        64 * MIB, description="Bytes of recent records kept in memory, all topics."
    )

    # Connections
    handshake_timeout_s: PositiveFloat = Field(
        10, description="Time for a new connection to say what it wants."
    )
    heartbeat_s: PositiveFloat = Field(20, description="Interval of pings to every connection.")
    heartbeat_timeout_s: PositiveFloat = Field(20, description="Silence after a ping that counts as dead.")
    stall_timeout_s: PositiveFloat = Field(
        300,
        description="Time in which a peer may take nothing of what waits for it before it counts as dead.",
    )
    shutdown_s: NonNegativeFloat = Field(10, description="Time to deliver what is pending before closing.")

    # Kernels
    kernels: bool = Field(
        True, description="Run and attach kernels; --no-kernels executes nothing for anybody."
    )
    kernels_max: PositiveInt = Field(64, description="Most kernels at a time.")
    kernel_queue_max: PositiveInt = Field(1_000, description="Most requests that wait for one kernel.")
    kernel_message_bytes_max: PositiveInt = Field(
        64 * MIB, description="Largest message of a kernel; of a larger one only its size and type are kept."
    )
    kernel_buffer_bytes: PositiveInt = Field(
        64 * MIB, description="Bytes of a kernel's output that may wait for the log before listening pauses."
    )
    kernel_spool_bytes: PositiveInt = Field(
        256 * MIB,
        description="Bytes of a kernel's output its keeper holds on disk for a server that is away.",
    )
    kernel_keep_s: PositiveFloat = Field(600, description="How long a kernel lives on without a server.")
    kernels_stay: bool = Field(
        False, description="Leave kernels running, for kernel_keep_s, at a graceful stop."
    )
    kernel_start_timeout_s: PositiveFloat = Field(60, description="Time for a kernel to start and answer.")
    kernel_heartbeat_s: PositiveFloat = Field(3, description="Interval of heartbeats to every kernel.")
    kernel_auto_restart: bool = Field(False, description="Start a kernel again when it dies by itself.")
    kernel_cull_s: NonNegativeFloat = Field(
        0, description="Stop kernels that did nothing for this long; 0 never."
    )
    kernel_orphans_max: NonNegativeInt = Field(
        1_000, description="Messages kept for a request not known yet."
    )
    kernel_orphan_age_s: PositiveFloat = Field(60, description="How long such messages are kept.")
    kernel_silence_s: PositiveFloat = Field(
        300, description="Silence, of a request and of its kernel's heart, after which the request is stale."
    )
    kernel_cleanup_s: PositiveFloat = Field(
        30, description="How often stale requests and old orphans are removed."
    )

    # Being watched
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="How much to log.")
    log_format: Literal["text", "json"] = Field("text", description="Log lines for people or for programs.")
    tracing: bool = Field(False, description="OpenTelemetry spans; needs the extra himalia[tracing].")
