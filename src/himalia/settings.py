"""Every setting of the server, in one place.

Each is a flag of ``himalia serve`` and an environment variable: ``message_bytes_max`` is
``--message-bytes-max`` and ``HIMALIA_MESSAGE_BYTES_MAX``. ``docs/operations.md`` explains them; a test keeps
the two in step.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import platformdirs
from pydantic import AfterValidator, Field, NonNegativeInt, PositiveInt
from pydantic_settings import BaseSettings, SettingsConfigDict

from himalia.local_server import default_warehouse_path, validate_warehouse_path

KIB, MIB = 1024, 1024 * 1024
FLOAT_MAX = 1e10
"""As seconds about three hundred years, so that no sum of times is beyond what a date can be."""
NonNegativeFloat = Annotated[float, Field(ge=0, le=FLOAT_MAX)]
PositiveFloat = Annotated[float, Field(gt=0, le=FLOAT_MAX)]
Port = Annotated[int, Field(ge=0, le=65535)]
KernelEncryption = Literal["auto", "required", "off"]
RlimitInt = Annotated[int, Field(ge=0, le=2**62)]
"""As the operating system takes it."""
KERNEL_MEMORY_MIN = 64 * MIB
_VARIABLE = re.compile(r"[A-Za-z_*?][A-Za-z0-9_*?]*\Z")


def checked_variable(pattern: str) -> str:
    """The name of an environment variable, or a pattern of names."""
    if not _VARIABLE.match(pattern):
        raise ValueError(
            f"{pattern[:80]!r} is not the name of a variable; give names, or patterns such as AWS_*"
        )
    return pattern


def checked_kernel_memory(memory_max: int) -> int:
    """A limit in which some kernel can start, or 0."""
    if 0 < memory_max < KERNEL_MEMORY_MIN:
        raise ValueError(
            f"no kernel starts in {memory_max} bytes; give at least {KERNEL_MEMORY_MIN}, or 0 for no limit"
        )
    return memory_max


def default_log_url() -> str:
    return f"sqlite://{platformdirs.user_data_path('himalia') / 'log.db'}"


class Settings(BaseSettings):
    """What the server does where nothing else is said. Sizes in bytes, times in seconds, 0 for no limit."""

    model_config = SettingsConfigDict(env_prefix="HIMALIA_", extra="ignore", frozen=True)

    # Where
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: Port = Field(8000, description="Port to listen on; 0 picks a free one.")
    log: str = Field(default_factory=default_log_url, description="The log: sqlite:///path or memory://.")
    warehouse: Annotated[Path, AfterValidator(validate_warehouse_path)] = Field(
        default_factory=default_warehouse_path, description="The pipeline's tables, for GET /tables."
    )
    workers: PositiveInt = Field(
        1, description="Server processes; one owns an embedded log, so only 1 works."
    )

    # Trust
    auth: bool = Field(True, description="Ask for a token or key; --no-auth works on loopback only.")
    token: str | None = Field(
        None, description="The token to ask for; if not given, one is made, kept beside the log and printed."
    )
    keys_file: Path | None = Field(
        None, description="TOML file with keys and their rights; replaces the token."
    )
    refused_key_delay_s: NonNegativeFloat = Field(
        1, description="Wait before answering a wrong key, after ten from an address within a minute."
    )
    session_s: PositiveFloat = Field(14 * 86400, description="How long a browser stays signed in.")
    sessions_max: PositiveInt = Field(10_000, description="Most browser sessions; beyond it the oldest ends.")
    jwt_secret_file: Path | None = Field(
        None, description="File with the secret of JSON Web Tokens signed by HS256."
    )
    jwt_jwks: str | None = Field(
        None, description="URL or file of the keys (JWKS) of tokens signed by RS256, ES256 or EdDSA."
    )
    jwt_issuer: str | None = Field(None, description="The claim iss that JSON Web Tokens need to have.")
    jwt_audience: str | None = Field(None, description="The claim aud that JSON Web Tokens need to have.")
    allowed_origins: list[str] = Field([], description="Browser origins to accept besides the server's own.")
    allowed_hosts: list[str] = Field([], description="Host names to answer to besides localhost and --host.")
    ssl_certfile: Path | None = Field(None, description="TLS certificate (PEM), with its chain.")
    ssl_keyfile: Path | None = Field(None, description="TLS private key (PEM).")
    ssl_keyfile_password: str | None = Field(None, description="Password of the TLS private key.")
    ssl_ca_certs: Path | None = Field(None, description="Authorities that sign client certificates (PEM).")
    ssl_cert_reqs: Literal["none", "optional", "required"] = Field(
        "none", description="Whether a client has to show a certificate of these."
    )

    # The log
    retention_age_s: NonNegativeFloat = Field(7 * 86400, description="Keep records this long; 0 for ever.")
    retention_bytes: NonNegativeInt = Field(0, description="Keep at most this many bytes a topic.")
    retention_count: NonNegativeInt = Field(0, description="Keep at most this many records a topic.")
    retention_wait: NonNegativeFloat = Field(
        1.0, description="How far beyond its limits a topic may go while the pipeline has not read it."
    )
    audit_retention_age_s: NonNegativeFloat = Field(
        90 * 86400, description="Keep the audit trail this long; counts when its topic is made."
    )
    audit_retention_bytes: NonNegativeInt = Field(
        256 * MIB, description="Keep at most this much of the audit trail; counts when its topic is made."
    )
    dedup_window_s: NonNegativeFloat = Field(120, description="Recognise a repeated message id this long.")
    dedup_ids_max: PositiveInt = Field(262_144, description="Recognise repeats among this many latest ids.")
    producer_age_s: NonNegativeFloat = Field(
        30 * 86400, description="Remember a producer that is not used this long; 0 for ever."
    )

    # Limits
    message_bytes_max: PositiveInt = Field(MIB, description="Largest message from a client.")
    headers_bytes_max: PositiveInt = Field(8 * KIB, description="Largest headers of a message, as JSON.")
    bulk_bytes_max: PositiveInt = Field(256 * MIB, description="Largest body of one REST publish.")
    bulk_messages_max: PositiveInt = Field(
        1_000_000, description="Most messages of one REST publish that is stored as a whole."
    )
    bodies_bytes_max: PositiveInt = Field(
        512 * MIB, description="Bytes of all request bodies being received; one caller has at most half."
    )
    connections_max: PositiveInt = Field(10_000, description="Most WebSocket and SSE connections at a time.")
    readers_max: PositiveInt = Field(64, description="Most answers that read a topic at a time.")
    subscriptions_max: PositiveInt = Field(1_000, description="Most subscriptions of one connection.")
    cursors_max: PositiveInt = Field(1_000_000, description="Most topics followed, over all subscriptions.")
    topics_max: PositiveInt = Field(100_000, description="Most topics.")
    producers_max: PositiveInt = Field(
        1_000_000, description="Most producers of one caller, over all topics."
    )
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

    queries_max: PositiveInt = Field(3, description="Most queries of tables at a time.")
    queries_per_caller: PositiveInt = Field(
        2, description="Of these, most of one caller, unless its own limits say otherwise."
    )
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
    body_idle_timeout_s: PositiveFloat = Field(
        30, description="Time in which nothing of a body comes, or in which it waits for room."
    )
    body_timeout_s: PositiveFloat = Field(
        300,
        description="Time for a whole body; NDJSON that is stored as it comes in has it again with what is stored.",
    )
    anonymous_connections_max: PositiveInt = Field(
        256, description="Most connections of one address that have shown no valid key."
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
    kernel_keep_s: PositiveFloat = Field(
        600, description="How long an idle kernel lives on without a server."
    )
    kernel_busy_keep_s: NonNegativeFloat = Field(
        86400, description="How long a busy kernel lives on without a server; 0 for ever."
    )
    kernels_stay: bool = Field(
        False, description="Leave kernels running, for kernel_keep_s, at a graceful stop."
    )
    kernel_encryption: KernelEncryption = Field(
        "auto", description="Encrypt a kernel's sockets: where it can, always (refusing others), or never."
    )
    kernel_env_keep: list[Annotated[str, AfterValidator(checked_variable)]] = Field(
        [],
        description="Names or patterns (AWS_*) of the server's secret variables that kernels get all the same.",
    )
    kernel_memory_max: Annotated[RlimitInt, AfterValidator(checked_kernel_memory)] = Field(
        0, description="Most bytes of address space of a kernel's process; 0 for no limit."
    )
    kernel_cpu_s_max: RlimitInt = Field(
        0, description="Most seconds of CPU time of a kernel's process, over its whole life; 0 for no limit."
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
