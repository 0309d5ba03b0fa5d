"""Jupyter messages without I/O: frames in, messages out, and back.

On the wire a message is a list of frames::

    identity or topic ...   <IDS|MSG>   signature   header   parent_header   metadata   content   buffer ...

The signature is the HMAC of the four JSON parts, in hexadecimal, with the key from the connection file; an empty
key means that messages are not signed. Buffers are not part of it, as the protocol has it. A signature that was
seen before is not refused: the keeper's spool gives messages again on purpose, and the log stores an id only once.

Only the ids are decoded at once. The other parts are looked through, not decoded: what leaves here is valid JSON in
valid UTF-8 on one line, because it is stored and sent on as it is, inside of other JSON.
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

    The four parts are JSON as it came, but for what keeps them from being stored as they are: line breaks
    between values became spaces, bytes that are not UTF-8 became U+FFFD, and NaN and the infinities null.
    """

    msg_id: str
    msg_type: str
    session: str = ""
    username: str = ""
    parent_id: str = ""
    """The ``msg_id`` of the request that caused this, "" if there is none."""
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
        """The content, decoded now: keep the result if it is needed twice. ``{}`` if it is not an object."""
        return _decoded_object(self.content)

    @property
    def size_bytes(self) -> int:
        """What the message counts for in every limit."""
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
    """A type that does not belong on IOPub: code in the kernel pretends to be Himalia, or one of its clients."""


NOT_ON_IOPUB = frozenset(
    ("", "kernel_event", "execute_request", "execute_reply", "input_request", "input_reply")
)
"""Types by which readers of a topic know Himalia's own events, and what it asked and was answered on other sockets.

Code that runs in a kernel can sign and publish whatever it likes. What it publishes under one of these would look like
an event, so it is refused where it comes in, once for all readers. Without a type, readers would look elsewhere.
"""


class Fault(msgspec.Struct, frozen=True):
    """Why some frames are no message. ``msg_type`` and ``parent_id`` are known only behind a good signature."""

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


_header_of = msgspec.json.Decoder(_Header).decode
_parent_of = msgspec.json.Decoder(_Parent).decode
# Looks through a JSON value without making objects of it.
_check = msgspec.json.Decoder(msgspec.Raw).decode
_encode = msgspec.json.Encoder().encode

_UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)


class Wire:
    """One peer's side of the conversation with one kernel.

    ``encode`` may be called from any thread, ``decode`` from one at a time.
    """

    def __init__(
        self,
        key: bytes,
        *,
        scheme: str = "hmac-sha256",
        bytes_max: int = BYTES_MAX,
        session: str | None = None,
        username: str = "himalia",
        refused_types: frozenset[str] = frozenset(),
        clock: Callable[[], int] = now_us,
    ) -> None:
        """``bytes_max`` bounds the parts and buffers of a message together; ``clock`` gives microseconds since 1970.

        Messages of ``refused_types`` are faults: ``NOT_ON_IOPUB`` for a wire that decodes what a kernel publishes.

        Raises ``ConfigurationError`` if the scheme is not ``hmac-`` and a digest that is known here.
        """
        self.session = session or uuid4().hex
        self.username = username
        self.bytes_max = bytes_max
        self.faults: Counter[FaultKind] = Counter()
        """Frames that were no message, by kind, since the start."""
        self._refused_types = refused_types
        self._clock = clock
        # Made once: to hash the key again for every message would double the cost of a small one.
        self._hmac = _new_hmac(key, scheme) if key else None
        # The parent last seen and its id: all output of a cell has the same, and then shares one object.
        self._parent = (EMPTY, "")

    def decode(self, frames: Sequence[bytes], seq: int = -1) -> KernelMessage | Fault:
        """The message in these frames, or why there is none. Never raises. ``seq`` is its number in a spool."""
        at = _delimiter_at(frames)
        if at < 0 or len(frames) < at + 6:
            return self._fault(FaultKind.SHORT, f"{len(frames)} frames are no message", frames)
        signature, header, parent, metadata, content = frames[at + 1 : at + 6]
        # Joined, the parts are hashed and looked at in one go.
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
                metadata, content = _checked(metadata), _checked(content)
            else:
                header, metadata, content = _tidied(header), _tidied(metadata), _tidied(content)
            return KernelMessage(
                msg_id=head.msg_id,
                # The same few words in every message: one copy of each is enough.
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
        """A message of our own and its frames, signed and ready to be sent. ``username`` is this client's by default.

        Raises ``TypeError`` if the content or the metadata cannot be written as JSON.
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
            header=_encoded(header),
            parent_header=parent.header if parent is not None else EMPTY,
            metadata=_encoded(metadata) if metadata else EMPTY,
            content=_encoded(content),
            buffers=tuple(bytes(buffer) for buffer in buffers),
            identities=tuple(identities),
            received_us=created_us,
        )
        return message, self.frames_of(message)

    def frames_of(self, message: KernelMessage) -> list[bytes]:
        """The frames of a message, signed with this kernel's key: for one that another peer made."""
        parts = (message.header, message.parent_header, message.metadata, message.content)
        return [*message.identities, DELIMITER, self._sign(b"".join(parts)), *parts, *message.buffers]

    def _sign(self, body: bytes) -> bytes:
        if self._hmac is None:
            return b""
        digest = self._hmac.copy()
        digest.update(body)
        return digest.hexdigest().encode()

    def _read_parent(self, parent: bytes) -> tuple[bytes, str]:
        """The parent header, fit to be stored, and its id."""
        remembered = self._parent
        if parent == remembered[0]:
            return remembered
        parent = EMPTY if parent == b"null" else _tidied(parent)
        self._parent = found = (parent, _parent_id(parent))
        return found

    def _too_large(self, header: bytes, parent: bytes, frames: Sequence[bytes]) -> Fault:
        msg_type = parent_id = ""
        try:
            msg_type = _read_header(header).msg_type
            parent_id = _parent_id(_tidied(parent))
        except _UNREADABLE:
            # It is refused for its size; whose it is would only have been of help.
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
        raise ConfigurationError(f"messages signed by {scheme!r} cannot be checked here") from error


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
        return _header_of(header)
    except _UNREADABLE:
        fields = _decoded_object(_tidied(header))
        msg_id, msg_type = fields.get("msg_id"), fields.get("msg_type")
        if not isinstance(msg_id, str) or not isinstance(msg_type, str):
            raise ValueError("the header has no msg_id or no msg_type") from None
        session, username = fields.get("session"), fields.get("username")
        return _Header(msg_id, msg_type, _text(session), _text(username))


def _parent_id(parent: bytes) -> str:
    try:
        return _parent_of(parent).msg_id
    except msgspec.ValidationError:
        # An object without a usable id has no parent; anything else is not a header.
        if not parent.lstrip().startswith(b"{"):
            raise ValueError("the parent header is not an object") from None
        return ""


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _checked(part: bytes) -> bytes:
    """The part, of which is known that it is ASCII on one line, fit to be stored and sent as it is."""
    if part != EMPTY:
        try:
            _check(part)
        except msgspec.DecodeError:
            return _repaired(part)
    return part


def _tidied(part: bytes) -> bytes:
    """The part, fit to be stored and sent as it is. Raises one of ``_UNREADABLE`` if it is not JSON."""
    try:
        if not part.isascii():
            part.decode()
        _check(part)
    except (msgspec.DecodeError, UnicodeDecodeError):
        part = _repaired(part)
    # Line breaks in JSON are only ever white space; without them a record fits on one line anywhere.
    if b"\n" in part or b"\r" in part:
        part = part.replace(b"\n", b" ").replace(b"\r", b" ")
    return part


def _repaired(part: bytes) -> bytes:
    """What Jupyter's own clients read out of it, as strict JSON.

    Python kernels print file names as bytes that are not UTF-8, halves of surrogate pairs, and NaN.
    """
    part = _encoded(_read_leniently(part.decode("utf-8", "replace")))
    _check(part)
    return part


def _read_leniently(text: str) -> object:
    return json.loads(text, strict=False, parse_constant=lambda _: None)


def _encoded(value: object) -> bytes:
    try:
        return _encode(value)
    except UnicodeEncodeError:
        # By way of UTF-16 each half of a surrogate pair becomes one U+FFFD.
        text = json.dumps(value, ensure_ascii=False)
        return _encode(_read_leniently(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")))


def _decoded_object(part: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(part)
    except _UNREADABLE:
        return {}
    return value if isinstance(value, dict) else {}
