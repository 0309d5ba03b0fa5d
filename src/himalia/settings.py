"""Every setting of the server, in sections.

Each is a flag of ``himalia serve`` and an environment variable: ``message_bytes_max`` is
``--message-bytes-max`` and ``HIMALIA_MESSAGE_BYTES_MAX``. ``docs/operations.md`` explains them; a test keeps
the two in step.

A component takes the section that concerns it (``PubSubManager`` takes ``DeliverySettings``), and reads its settings
there, so a new setting is a field here and the line that reads it. ``Settings`` has all sections in one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal

import platformdirs
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, NonNegativeInt, PositiveInt
from pydantic_settings import BaseSettings, SettingsConfigDict

from himalia.local_server import default_warehouse_path, validate_warehouse_path
from himalia.record import Retention

KIB, MIB = 1024, 1024 * 1024
FLOAT_MAX = 1e10
"""As seconds about three hundred years, so that no sum of times exceeds the range of dates."""
NonNegativeFloat = Annotated[float, Field(ge=0, le=FLOAT_MAX)]
PositiveFloat = Annotated[float, Field(gt=0, le=FLOAT_MAX)]
Port = Annotated[int, Field(ge=0, le=65535)]
KernelEncryption = Literal["auto", "required", "off"]
RlimitInt = Annotated[int, Field(ge=0, le=2**62)]
"""The range of the operating system's resource limits."""
KERNEL_MEMORY_MIN = 64 * MIB
TUNINGS = ("gc", "malloc", "switch_interval", "uvloop")
_VARIABLE = re.compile(r"[A-Za-z_*?][A-Za-z0-9_*?]*\Z")


def check_variable(pattern: str) -> str:
    """Return the name of an environment variable, or a pattern of names; raise ``ValueError`` if it is neither."""
    if not _VARIABLE.match(pattern):
        raise ValueError(
            f"{pattern[:80]!r} is not the name of a variable; give names, or patterns such as AWS_*"
        )
    return pattern


def check_kernel_memory(memory_max: int) -> int:
    """Return a limit that is 0 or large enough for a kernel to start; raise ``ValueError`` for a smaller one."""
    if 0 < memory_max < KERNEL_MEMORY_MIN:
        raise ValueError(
            f"no kernel starts in {memory_max} bytes; give at least {KERNEL_MEMORY_MIN}, or 0 for no limit"
        )
    return memory_max


def check_tuning(name: str) -> str:
    """Return the name of a tuning in ``server/performance.py``; raise ``ValueError`` if there is none."""
    if name not in TUNINGS:
        raise ValueError(f"{name[:80]!r} is not a tuning; there are {', '.join(TUNINGS)}")
    return name


def default_log_url() -> str:
    return f"sqlite://{platformdirs.user_data_path('himalia') / 'log.db'}"


class Section(BaseModel):
    """Settings of one component. Sizes in bytes, times in seconds, 0 for no limit."""

    model_config = ConfigDict(frozen=True)


class ServerSettings(Section):
    """Where the server listens, and where its data is."""

    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: Port = Field(8000, description="Port to listen on; 0 picks a free one.")
    log: str = Field(default_factory=default_log_url, description="The log: sqlite:///path or memory://.")
    warehouse: Annotated[Path, AfterValidator(validate_warehouse_path)] = Field(
        default_factory=default_warehouse_path, description="The pipeline's tables, for GET /tables."
    )
    workers: PositiveInt = Field(
        1, description="Server processes; one owns an embedded log, so only 1 works."
    )
    tuning_off: list[Annotated[str, AfterValidator(check_tuning)]] = Field(
        [], description="Performance tunings to switch off: gc, malloc, switch_interval, uvloop."
    )


class IdentitySettings(Section):
    """How callers are authenticated, and which origins and hosts are accepted."""

    auth: bool = Field(True, description="Require a token or key; --no-auth works on loopback only.")
    token: str | None = Field(
        None,
        description="The token to require; if not given, one is generated, stored beside the log and printed.",
    )
    keys_file: Path | None = Field(
        None, description="TOML file with keys and their rights; replaces the token."
    )
    refused_key_delay_s: NonNegativeFloat = Field(
        1, description="Delay before a wrong key is answered, after ten from an address within a minute."
    )
    session_s: PositiveFloat = Field(14 * 86400, description="How long a browser stays signed in.")
    sessions_max: PositiveInt = Field(
        10_000, description="Maximum number of browser sessions; beyond it the oldest ends."
    )
    jwt_secret_file: Path | None = Field(
        None, description="File with the secret of JSON Web Tokens signed with HS256."
    )
    jwt_jwks: str | None = Field(
        None, description="URL or file of the keys (JWKS) of tokens signed with RS256, ES256 or EdDSA."
    )
    jwt_issuer: str | None = Field(None, description="The claim iss that JSON Web Tokens must have.")
    jwt_audience: str | None = Field(None, description="The claim aud that JSON Web Tokens must have.")
    allowed_origins: list[str] = Field([], description="Browser origins to accept besides the server's own.")
    allowed_hosts: list[str] = Field([], description="Host names to accept besides localhost and --host.")
    ssl_certfile: Path | None = Field(None, description="TLS certificate (PEM), with its chain.")
    ssl_keyfile: Path | None = Field(None, description="TLS private key (PEM).")
    ssl_keyfile_password: str | None = Field(None, description="Password of the TLS private key.")
    ssl_ca_certs: Path | None = Field(None, description="Authorities that sign client certificates (PEM).")
    ssl_cert_reqs: Literal["none", "optional", "required"] = Field(
        "none", description="Whether clients must present a certificate signed by these."
    )


class LogSettings(Section):
    """What the log keeps, and which repeats it recognises."""

    retention_age_s: NonNegativeFloat = Field(
        7 * 86400, description="Keep records for this long; 0 keeps them forever."
    )
    retention_bytes: NonNegativeInt = Field(0, description="Keep at most this many bytes per topic.")
    retention_count: NonNegativeInt = Field(0, description="Keep at most this many records per topic.")
    retention_wait: NonNegativeFloat = Field(
        1.0, description="How far a topic may exceed its limits while the pipeline has not read it."
    )
    dedup_window_s: NonNegativeFloat = Field(
        120, description="Recognise a repeated message id for this long."
    )
    dedup_ids_max: PositiveInt = Field(
        262_144, description="Recognise repeats among this many of the latest ids."
    )
    producer_age_s: NonNegativeFloat = Field(
        30 * 86400, description="Remember an unused producer for this long; 0 remembers it forever."
    )
    topics_max: PositiveInt = Field(100_000, description="Maximum number of topics.")
    producers_max: PositiveInt = Field(
        1_000_000, description="Maximum number of producers of one caller, over all topics."
    )

    @property
    def retention(self) -> Retention:
        """The limits of every topic that sets none of its own."""
        return Retention(self.retention_age_s, self.retention_bytes, self.retention_count)


class AuditSettings(Section):
    """What the audit trail keeps."""

    audit_retention_age_s: NonNegativeFloat = Field(
        90 * 86400,
        description="Keep the audit trail for this long; takes effect when its topic is created.",
    )
    audit_retention_bytes: NonNegativeInt = Field(
        256 * MIB,
        description="Keep at most this many bytes of the audit trail; takes effect when its topic is created.",
    )


class LimitSettings(Section):
    """What clients may send, and how much at a time."""

    message_bytes_max: PositiveInt = Field(MIB, description="Largest message from a client.")
    headers_bytes_max: PositiveInt = Field(8 * KIB, description="Largest headers of a message, as JSON.")
    bulk_bytes_max: PositiveInt = Field(256 * MIB, description="Largest body of one REST publish.")
    bulk_messages_max: PositiveInt = Field(
        1_000_000, description="Maximum number of messages of one REST publish that is stored atomically."
    )
    bodies_bytes_max: PositiveInt = Field(
        512 * MIB, description="Bytes of all request bodies being received; one caller may use half."
    )
    connections_max: PositiveInt = Field(
        10_000, description="Maximum number of WebSocket and SSE connections."
    )
    readers_max: PositiveInt = Field(
        64, description="Maximum number of responses that read a topic at a time."
    )
    subscriptions_max: PositiveInt = Field(
        1_000, description="Maximum number of subscriptions per connection."
    )
    topic_length_max: Annotated[int, Field(ge=1, le=255)] = Field(255, description="Longest topic name.")
    publish_rate_max: NonNegativeFloat = Field(
        0, description="Maximum number of publishes per second from one connection."
    )
    publishes_in_flight_max: PositiveInt = Field(
        4096, description="Uncommitted publishes of a connection at which reading from it pauses."
    )
    in_flight_bytes_max: PositiveInt = Field(
        64 * MIB, description="Uncommitted bytes of all connections at which reading from them pauses."
    )
    last_n_max: NonNegativeInt = Field(1_000_000, description="Largest last_n of a subscription.")
    filter_length_max: PositiveInt = Field(2_048, description="Longest content filter, in characters.")
    queries_max: PositiveInt = Field(3, description="Maximum number of table queries at a time.")
    queries_per_caller: PositiveInt = Field(
        2, description="Maximum number of these of one caller, unless its own limits say otherwise."
    )


class DeliverySettings(Section):
    """How records are delivered to subscribers."""

    cursors_max: PositiveInt = Field(
        1_000_000, description="Maximum number of topics followed, over all subscriptions."
    )
    filters_max: PositiveInt = Field(
        256, description="Maximum number of distinct content filters in use at a time."
    )
    subscriber_limit: PositiveInt = Field(100, description="Records a subscriber may lag behind by default.")
    subscriber_limit_max: PositiveInt = Field(
        1_000_000, description="Largest limit a subscriber may request."
    )
    write_buffer_bytes: PositiveInt = Field(
        64 * KIB, description="Unsent bytes at which a connection is full."
    )
    chunk_bytes: PositiveInt = Field(256 * KIB, description="Bytes written to one subscriber per turn.")
    tail_records: PositiveInt = Field(1024, description="Recent records of a followed topic kept in memory.")
    tail_bytes: PositiveInt = Field(
        64 * MIB, description="Bytes of recent records kept in memory, over all topics."
    )


class ConnectionSettings(Section):
    """Timeouts of connections and bodies."""

    handshake_timeout_s: PositiveFloat = Field(
        10, description="Time for a new connection to send its request."
    )
    body_idle_timeout_s: PositiveFloat = Field(
        30, description="Time in which nothing of a body arrives, or in which it waits for room."
    )
    body_timeout_s: PositiveFloat = Field(
        300,
        description="Time for a whole body; for NDJSON that is stored while it arrives, for each part that is stored.",
    )
    anonymous_connections_max: PositiveInt = Field(
        256, description="Maximum number of connections from one address without a valid key."
    )
    heartbeat_s: PositiveFloat = Field(20, description="Interval of pings to every connection.")
    heartbeat_timeout_s: PositiveFloat = Field(
        20, description="Close a connection that has not replied to a ping for this long."
    )
    stall_timeout_s: PositiveFloat = Field(
        300, description="Close a connection whose peer has read none of its pending data for this long."
    )
    shutdown_s: NonNegativeFloat = Field(10, description="Time to deliver what is pending before closing.")


class KernelSettings(Section):
    """Kernels that the server starts and attaches."""

    kernels: bool = Field(True, description="Run and attach kernels; with --no-kernels no caller can.")
    kernels_max: PositiveInt = Field(64, description="Maximum number of kernels.")
    kernel_queue_max: PositiveInt = Field(
        1_000, description="Maximum number of requests queued for one kernel."
    )
    kernel_message_bytes_max: PositiveInt = Field(
        64 * MIB,
        description="Largest message of a kernel; of a larger one only its size and type are stored.",
    )
    kernel_buffer_bytes: PositiveInt = Field(
        64 * MIB, description="Uncommitted bytes of a kernel's output at which reading from it pauses."
    )
    kernel_spool_bytes: PositiveInt = Field(
        256 * MIB, description="Bytes of a kernel's output that its keeper spools while no server reads it."
    )
    kernel_keep_s: PositiveFloat = Field(
        600, description="How long an idle kernel survives without a server."
    )
    kernel_busy_keep_s: NonNegativeFloat = Field(
        86400, description="How long a busy kernel survives without a server; 0 for no limit."
    )
    kernels_stay: bool = Field(
        False, description="Leave kernels running, for kernel_keep_s, at a graceful stop."
    )
    kernel_encryption: KernelEncryption = Field(
        "auto", description="Encrypt a kernel's sockets: if it can, always (refusing others), or never."
    )
    kernel_env_keep: list[Annotated[str, AfterValidator(check_variable)]] = Field(
        [], description="Secret variables of the server to pass to kernels: names or patterns (AWS_*)."
    )
    kernel_memory_max: Annotated[RlimitInt, AfterValidator(check_kernel_memory)] = Field(
        0, description="Maximum address space of a kernel's process, in bytes; 0 for no limit."
    )
    kernel_cpu_s_max: RlimitInt = Field(
        0, description="Maximum CPU time of a kernel's process, in seconds; 0 for no limit."
    )
    kernel_start_timeout_s: PositiveFloat = Field(60, description="Time for a kernel to start and reply.")
    kernel_heartbeat_s: PositiveFloat = Field(3, description="Interval of heartbeats to every kernel.")
    kernel_auto_restart: bool = Field(False, description="Restart a kernel that died.")
    kernel_cull_s: NonNegativeFloat = Field(
        0, description="Stop kernels that have been idle for this long; 0 never."
    )
    kernel_orphans_max: NonNegativeInt = Field(
        1_000, description="Messages buffered for requests that are not known yet."
    )
    kernel_orphan_age_s: PositiveFloat = Field(60, description="How long such messages are buffered.")
    kernel_silence_s: PositiveFloat = Field(
        300, description="Mark a request stale after this long without output or kernel heartbeat."
    )
    kernel_cleanup_s: PositiveFloat = Field(
        30, description="How often stale requests and old orphan messages are removed."
    )


class ObservabilitySettings(Section):
    """What the server logs and traces."""

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Lowest level to log."
    )
    log_format: Literal["text", "json"] = Field("text", description="Format of log lines.")
    tracing: bool = Field(False, description="Export OpenTelemetry spans; needs the extra himalia[tracing].")


# Pydantic collects the fields from the last base to the first, which is the order of ``himalia serve --help``.
class Settings(
    ObservabilitySettings,
    KernelSettings,
    ConnectionSettings,
    DeliverySettings,
    LimitSettings,
    AuditSettings,
    LogSettings,
    IdentitySettings,
    ServerSettings,
    BaseSettings,
):
    """All settings of a server, from keyword arguments and the environment."""

    model_config = SettingsConfigDict(env_prefix="HIMALIA_", extra="ignore", frozen=True)
