"""Jupyter messages without I/O: frames in, messages out, and back.

On the wire a message is a list of frames::

    identity or topic ...   <IDS|MSG>   signature   header   parent_header   metadata   content   buffer ...

The signature is the HMAC of the four JSON parts, in hexadecimal, with the key from the connection file; an empty
key means that messages are not signed. Buffers are not part of it, as the protocol has it. A signature that was
seen before is accepted again: the keeper's spool repeats messages on purpose, and the log stores an id only once.

Only the ids are decoded at once. The other parts are validated, not decoded: a decoded message consists of valid JSON
in valid UTF-8 on one line, because it is stored and sent as it is, inside of other JSON.
"""

from __future__ import annotations

import hmac
import json
from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum
from sys import intern
from typing import Any
from uuid import uuid4

import msgspec

from himalia.errors import ConfigurationError
from himalia.record import format_ts, now_us

DELIMITER = b"<IDS|MSG>"
PROTOCOL_VERSION = "5.4"
BYTES_MAX = 64 << 20
EMPTY = b"{}"


class KernelMessage(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One Jupyter message. It never changes, so it may be shared between threads, requests and subscribers.

    The four parts are the JSON that was received, except for what cannot be stored: line breaks between values became
    spaces, bytes that are not UTF-8 became U+FFFD, and NaN and the infinities null.
    """

    msg_id: str
    msg_type: str
    session: str = ""
    username: str = ""
    parent_id: str = ""
    """The ``msg_id`` of the request that caused this; empty if there is none."""
    header: bytes
    parent_header: bytes = EMPTY
    metadata: bytes = EMPTY
    content: bytes = EMPTY
    buffers: tuple[bytes, ...] = ()
    identities: tuple[bytes, ...] = ()
    received_us: int = 0
    seq: int = -1
    """Its number among all that the kernel's keeper received; -1 if it came another way."""

    def decoded_content(self) -> dict[str, Any]:
        """Decode the content; ``{}`` if it is not an object. Each call decodes it again."""
        return _decode_object(self.content)

    @property
    def size_bytes(self) -> int:
        """The size by which every limit counts the message."""
        size = len(self.content) + len(self.header) + len(self.parent_header) + len(self.metadata)
        return size + sum(map(len, self.buffers)) if self.buffers else size


class FaultKind(StrEnum):
    UNSIGNED = "unsigned"
    BAD_SIGNATURE = "bad_signature"
    SHORT = "short"
    """Frames are missing, or the delimiter is."""
    NOT_JSON = "not_json"
    """A part is not JSON, or the header has no ``msg_id`` or ``msg_type``."""
    TOO_LARGE = "too_large"
    RESERVED_TYPE = "reserved_type"
    """A type that does not belong on IOPub: code in the kernel pretends to be Himalia or one of its clients."""


NOT_ON_IOPUB = frozenset(
    ("", "kernel_event", "execute_request", "execute_reply", "input_request", "input_reply")
)
"""Types by which readers of a topic recognise Himalia's own events, and requests and replies of the other sockets.

Code that runs in a kernel can sign and publish any message. One with such a type would look like an event, so it is
refused on arrival, once for all readers. Of a message without a type, readers would take the type from elsewhere.
"""


class WireLimits(msgspec.Struct, frozen=True):
    """The messages that a wire accepts; all others are faults."""

    bytes_max: int = BYTES_MAX
    """The most bytes of a message: its parts and buffers together."""
    refused_types: frozenset[str] = frozenset()
    """``NOT_ON_IOPUB`` for a wire that decodes what a kernel publishes."""


class Peer(msgspec.Struct, frozen=True):
    """Who sends messages, as their headers name it."""

    session: str = ""
    """Empty for a random one."""
    username: str = "himalia"


class Fault(msgspec.Struct, frozen=True):
    """Why some frames are not a message. ``msg_type`` and ``parent_id`` are known only if the signature is valid."""

    kind: FaultKind
    detail: str
    size_bytes: int = 0
    msg_type: str = ""
    parent_id: str = ""


class _Header(msgspec.Struct, gc=False):
    msg_id: str
    msg_type: str
    session: str = ""
    username: str = ""


class _Parent(msgspec.Struct, gc=False):
    msg_id: str = ""


_decode_header = msgspec.json.Decoder(_Header).decode
_decode_parent = msgspec.json.Decoder(_Parent).decode
# Validates JSON without creating objects of it.
_validate = msgspec.json.Decoder(msgspec.Raw).decode
_encode = msgspec.json.Encoder().encode

_UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)


class Wire:
    """Encodes and decodes the messages between one peer and one kernel.

    ``encode`` may be called from any thread, ``decode`` from one at a time.
    """

    def __init__(
        self,
        key: bytes,
        *,
        scheme: str = "hmac-sha256",
        limits: WireLimits = WireLimits(),
        peer: Peer = Peer(),
        clock: Callable[[], int] = now_us,
    ) -> None:
        """``clock`` returns microseconds since 1970.

        Raises ``ConfigurationError`` if the scheme is not ``hmac-`` and a digest that is known here.
        """
        self.session = peer.session or uuid4().hex
        self.username = peer.username
        self.bytes_max = limits.bytes_max
        self.faults: Counter[FaultKind] = Counter()
        """Frames that were not a message, by kind, since the start."""
        self._refused_types = limits.refused_types
        self._clock = clock
        # Created once: hashing the key again for every message would double the cost of a small one.
        self._hmac = _new_hmac(key, scheme) if key else None
        # The last parent and its id: all output of a cell has the same parent, and then shares one object.
        self._parent = (EMPTY, "")

    def decode(self, frames: Sequence[bytes], seq: int = -1) -> KernelMessage | Fault:
        """Decode a message, or return why the frames are none. Never raises. ``seq`` is its number in a spool."""
        at = _delimiter_at(frames)
        if at < 0 or len(frames) < at + 6:
            return self._fault(FaultKind.SHORT, f"{len(frames)} frames are no message", frames)
        signature, header, parent, metadata, content = frames[at + 1 : at + 6]
        # Joined, so that the parts are hashed and examined at once.
        body = b"".join((header, parent, metadata, content))
        if self._hmac is not None:
            if not signature:
                return self._fault(FaultKind.UNSIGNED, "the signature is empty", frames)
            if not hmac.compare_digest(signature, self._sign(body)):
                return self._fault(FaultKind.BAD_SIGNATURE, "the signature does not match", frames)
        buffers = tuple(frames[at + 6 :])
        if len(body) + sum(map(len, buffers)) > self.bytes_max:
            return self._too_large(header, parent, frames)
        head = None
        parent_id = ""
        try:
            head = _read_header(header)
            parent, parent_id = self._read_parent(parent)
            if head.msg_type in self._refused_types:
                detail = f"{head.msg_type!r} is not a type of what a kernel publishes"
                return self._fault(FaultKind.RESERVED_TYPE, detail, frames, head.msg_type, parent_id)
            if body.isascii() and b"\n" not in body and b"\r" not in body:
                metadata, content = _validate_ascii(metadata), _validate_ascii(content)
            else:
                header, metadata, content = _normalize(header), _normalize(metadata), _normalize(content)
            return KernelMessage(
                msg_id=head.msg_id,
                # A few values that repeat in every message: one copy of each is enough.
                msg_type=intern(head.msg_type),
                session=intern(head.session),
                username=intern(head.username),
                parent_id=parent_id,
                header=header,
                parent_header=parent,
                metadata=EMPTY if metadata == b"null" else metadata,
                content=content,
                buffers=buffers,
                identities=tuple(frames[:at]),
                received_us=self._clock(),
                seq=seq,
            )
        except _UNREADABLE as error:
            return self._fault(
                FaultKind.NOT_JSON, str(error), frames, head.msg_type if head else "", parent_id
            )

    def encode(
        self,
        msg_type: str,
        content: dict[str, Any],
        *,
        parent: KernelMessage | None = None,
        metadata: dict[str, Any] | None = None,
        msg_id: str | None = None,
        username: str | None = None,
        buffers: Sequence[bytes] = (),
        identities: Sequence[bytes] = (),
    ) -> tuple[KernelMessage, list[bytes]]:
        """Create a message and its frames, signed and ready to be sent. ``username`` is this peer's by default.

        Raises ``TypeError`` if the content or the metadata cannot be encoded as JSON.
        """
        created_us = self._clock()
        msg_id = msg_id or str(uuid4())
        header = {
            "msg_id": msg_id,
            "msg_type": msg_type,
            "session": self.session,
            "username": username or self.username,
            "date": format_ts(created_us),
            "version": PROTOCOL_VERSION,
        }
        message = KernelMessage(
            msg_id=msg_id,
            msg_type=msg_type,
            session=self.session,
            username=username or self.username,
            parent_id=parent.msg_id if parent is not None else "",
            header=_encode_json(header),
            parent_header=parent.header if parent is not None else EMPTY,
            metadata=_encode_json(metadata) if metadata else EMPTY,
            content=_encode_json(content),
            buffers=tuple(bytes(buffer) for buffer in buffers),
            identities=tuple(identities),
            received_us=created_us,
        )
        return message, self.frames_of(message)

    def frames_of(self, message: KernelMessage) -> list[bytes]:
        """Return the frames of a message that another peer created, signed with this kernel's key."""
        parts = (message.header, message.parent_header, message.metadata, message.content)
        return [*message.identities, DELIMITER, self._sign(b"".join(parts)), *parts, *message.buffers]

    def _sign(self, body: bytes) -> bytes:
        if self._hmac is None:
            return b""
        digest = self._hmac.copy()
        digest.update(body)
        return digest.hexdigest().encode()

    def _read_parent(self, parent: bytes) -> tuple[bytes, str]:
        """Return the parent header, ready to be stored, and its id."""
        last = self._parent
        if parent == last[0]:
            return last
        parent = EMPTY if parent == b"null" else _normalize(parent)
        self._parent = read = (parent, _parent_id(parent))
        return read

    def _too_large(self, header: bytes, parent: bytes, frames: Sequence[bytes]) -> Fault:
        msg_type = parent_id = ""
        try:
            msg_type = _read_header(header).msg_type
            parent_id = _parent_id(_normalize(parent))
        except _UNREADABLE:
            # It is refused for its size in any case.
            pass
        return self._fault(
            FaultKind.TOO_LARGE, f"a message has at most {self.bytes_max} bytes", frames, msg_type, parent_id
        )

    def _fault(
        self, kind: FaultKind, detail: str, frames: Sequence[bytes], msg_type: str = "", parent_id: str = ""
    ) -> Fault:
        self.faults[kind] += 1
        return Fault(kind, detail, sum(map(len, frames)), msg_type, parent_id)


def _new_hmac(key: bytes, scheme: str) -> hmac.HMAC:
    family, _, digest = scheme.partition("-")
    try:
        if family != "hmac" or not digest:
            raise ValueError(scheme)
        return hmac.new(key, digestmod=digest)
    except ValueError as error:
        raise ConfigurationError(
            f"messages signed with {scheme!r} cannot be verified; use a scheme such as hmac-sha256"
        ) from error


def _delimiter_at(frames: Sequence[bytes]) -> int:
    # IOPub has one frame before it, its topic.
    if len(frames) > 1 and frames[1] == DELIMITER:
        return 0 if frames[0] == DELIMITER else 1
    try:
        return frames.index(DELIMITER)
    except ValueError:
        return -1


def _read_header(header: bytes) -> _Header:
    try:
        return _decode_header(header)
    except _UNREADABLE:
        fields = _decode_object(_normalize(header))
        msg_id, msg_type = fields.get("msg_id"), fields.get("msg_type")
        if not isinstance(msg_id, str) or not isinstance(msg_type, str):
            raise ValueError("the header has no msg_id or no msg_type") from None
        session, username = fields.get("session"), fields.get("username")
        return _Header(msg_id, msg_type, _text(session), _text(username))


def _parent_id(parent: bytes) -> str:
    try:
        return _decode_parent(parent).msg_id
    except msgspec.ValidationError:
        # An object without a usable id has no parent; anything else is not a header.
        if not parent.lstrip().startswith(b"{"):
            raise ValueError("the parent header is not an object") from None
        return ""


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _validate_ascii(part: bytes) -> bytes:
    """Validate a part that is known to be single-line ASCII, and repair it if that is necessary."""
    if part != EMPTY:
        try:
            _validate(part)
        except msgspec.DecodeError:
            return _repair_json(part)
    return part


def _normalize(part: bytes) -> bytes:
    """Return a part as valid UTF-8 JSON on one line. Raises one of ``_UNREADABLE`` if it is not JSON."""
    try:
        if not part.isascii():
            part.decode()
        _validate(part)
    except (msgspec.DecodeError, UnicodeDecodeError):
        part = _repair_json(part)
    # Line breaks in JSON are always white space; without them a record is one line everywhere.
    if b"\n" in part or b"\r" in part:
        part = part.replace(b"\n", b" ").replace(b"\r", b" ")
    return part


def _repair_json(part: bytes) -> bytes:
    """Encode what Jupyter's own clients would decode, as strict JSON.

    Python kernels print file names as bytes that are not UTF-8, halves of surrogate pairs, and NaN.
    """
    part = _encode_json(_read_leniently(part.decode("utf-8", "replace")))
    _validate(part)
    return part


def _read_leniently(text: str) -> object:
    return json.loads(text, strict=False, parse_constant=lambda _: None)


def _encode_json(value: object) -> bytes:
    try:
        return _encode(value)
    except UnicodeEncodeError:
        # By way of UTF-16 each half of a surrogate pair becomes one U+FFFD.
        text = json.dumps(value, ensure_ascii=False)
        return _encode(_read_leniently(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")))


def _decode_object(part: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(part)
    except _UNREADABLE:
        return {}
    return value if isinstance(value, dict) else {}
