"""Every error that Himalia raises or sends, in one tree.

::

    HimaliaError                     code, message, data
    ├── BadRequest                   BAD_REQUEST            malformed input; do not retry
    │   ├── BadFilter                BAD_FILTER             a content filter that does not compile
    │   ├── BadQuery                 BAD_QUERY              SQL that does not parse, or that is not a query
    │   └── MessageTooLarge          MESSAGE_TOO_LARGE
    ├── BodyTimeout                  BODY_TIMEOUT           the body of a request arrived too slowly
    ├── FilterFailed                 FILTER_FAILED          a content filter that failed on a record
    ├── Unauthorized                 UNAUTHORIZED           no key, or an invalid one
    │   ├── WrongKey                 UNAUTHORIZED           an invalid secret, rather than none
    │   └── Forbidden                FORBIDDEN              the key lacks this right on this topic
    ├── SessionNotFound              SESSION_NOT_FOUND
    ├── TopicNotFound                TOPIC_NOT_FOUND
    ├── TopicExists                  TOPIC_EXISTS
    ├── EpochChanged                 EPOCH_CHANGED          the topic was deleted and created again, or restored
    ├── LimitExceeded
    │   ├── TooManyConnections       TOO_MANY_CONNECTIONS
    │   ├── TooManyReaders           TOO_MANY_READERS
    │   ├── TooManySubscriptions     TOO_MANY_SUBSCRIPTIONS
    │   ├── TooManyTopics            TOO_MANY_TOPICS
    │   ├── TooManyProducers         TOO_MANY_PRODUCERS     of one caller
    │   ├── TooManyBodies            TOO_MANY_BODIES        too many bytes are being received; retry later
    │   ├── RateLimited              RATE_LIMITED
    │   ├── TooManyKernels           TOO_MANY_KERNELS
    │   ├── TooManyRequests          TOO_MANY_REQUESTS      too many are queued for one kernel
    │   └── QueryTooLarge            QUERY_TOO_LARGE        a query took too long, or too much memory
    ├── KernelNotFound               KERNEL_NOT_FOUND
    ├── KernelUnavailable            KERNEL_UNAVAILABLE     it is dead, or attached and not managed here
    ├── KernelFailed                 KERNEL_FAILED          it could not be started; the message says why
    ├── ExecutionNotFound            EXECUTION_NOT_FOUND
    ├── TableNotFound                TABLE_NOT_FOUND
    │   └── WarehouseNotFound        TABLE_NOT_FOUND        the pipeline has not created any table yet
    ├── SubscriptionReplaced         REPLACED               the same client_id subscribed elsewhere
    ├── SlowConsumer                 SLOW_CONSUMER          fell behind under the policy ``disconnect``
    ├── ShuttingDown                 SHUTTING_DOWN          retry against the restarted server
    ├── LogUnavailable               UNAVAILABLE            nothing was stored; retry later
    │   ├── LogFull                  UNAVAILABLE            no space left on the device
    │   ├── LogReadOnly              UNAVAILABLE
    │   ├── LogCorrupt               UNAVAILABLE
    │   ├── LogLocked                UNAVAILABLE            another process owns the file
    │   └── LogTooNew                UNAVAILABLE            written by a newer Himalia
    ├── SessionsNotStored            UNAVAILABLE            ended sessions are not stored; a crash would restore them
    ├── IssuerUnavailable            UNAVAILABLE            the keys that sign JSON Web Tokens cannot be fetched
    ├── ConnectionFailed             CONNECTION_FAILED      client side: no server responds
    ├── DataLost                     DATA_LOST              client side: records were deleted before they were read
    ├── ConfigurationError           BAD_CONFIGURATION      a setting that cannot work
    │   └── WarehouseLocked          BAD_CONFIGURATION      another run of the pipeline uses this warehouse
    └── InternalError                INTERNAL               a bug; the server log has the details
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import Any, ClassVar, Self


class ErrorCode(StrEnum):
    """The code of an ``error`` message. Programs match on the code; the message is for people."""

    BAD_REQUEST = "BAD_REQUEST"
    BAD_FILTER = "BAD_FILTER"
    BAD_QUERY = "BAD_QUERY"
    MESSAGE_TOO_LARGE = "MESSAGE_TOO_LARGE"
    BODY_TIMEOUT = "BODY_TIMEOUT"
    FILTER_FAILED = "FILTER_FAILED"
    UNAUTHORIZED = "UNAUTHORIZED"
    FORBIDDEN = "FORBIDDEN"
    SESSION_NOT_FOUND = "SESSION_NOT_FOUND"
    TOPIC_NOT_FOUND = "TOPIC_NOT_FOUND"
    TOPIC_EXISTS = "TOPIC_EXISTS"
    EPOCH_CHANGED = "EPOCH_CHANGED"
    TOO_MANY_CONNECTIONS = "TOO_MANY_CONNECTIONS"
    TOO_MANY_READERS = "TOO_MANY_READERS"
    TOO_MANY_SUBSCRIPTIONS = "TOO_MANY_SUBSCRIPTIONS"
    TOO_MANY_TOPICS = "TOO_MANY_TOPICS"
    TOO_MANY_PRODUCERS = "TOO_MANY_PRODUCERS"
    TOO_MANY_BODIES = "TOO_MANY_BODIES"
    RATE_LIMITED = "RATE_LIMITED"
    TOO_MANY_KERNELS = "TOO_MANY_KERNELS"
    TOO_MANY_REQUESTS = "TOO_MANY_REQUESTS"
    QUERY_TOO_LARGE = "QUERY_TOO_LARGE"
    KERNEL_NOT_FOUND = "KERNEL_NOT_FOUND"
    KERNEL_UNAVAILABLE = "KERNEL_UNAVAILABLE"
    KERNEL_FAILED = "KERNEL_FAILED"
    EXECUTION_NOT_FOUND = "EXECUTION_NOT_FOUND"
    TABLE_NOT_FOUND = "TABLE_NOT_FOUND"
    REPLACED = "REPLACED"
    SLOW_CONSUMER = "SLOW_CONSUMER"
    SHUTTING_DOWN = "SHUTTING_DOWN"
    UNAVAILABLE = "UNAVAILABLE"
    CONNECTION_FAILED = "CONNECTION_FAILED"
    DATA_LOST = "DATA_LOST"
    BAD_CONFIGURATION = "BAD_CONFIGURATION"
    INTERNAL = "INTERNAL"


class HimaliaError(Exception):
    """The root of all errors. ``message`` is a sentence for people; ``data`` has details for programs."""

    code: ClassVar[ErrorCode] = ErrorCode.INTERNAL

    def __init__(self, message: str, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.data = data

    @classmethod
    def from_message(cls, message: str, **data: Any) -> Self:
        """Make an error of this class whose message is written already: one that another process raised.

        The constructors of some subclasses take other arguments and write the message themselves.
        """
        error = cls.__new__(cls)
        HimaliaError.__init__(error, message, **data)
        return error

    @staticmethod
    def from_code(code: str, message: str, **data: Any) -> HimaliaError:
        """Make the error of a code and a message that were received; ``data["code"]`` is that code.

        Of several classes with one code it is the topmost: ``UNAVAILABLE`` gives ``LogUnavailable``. A code that this
        version does not know gives a plain ``HimaliaError``.
        """
        found = _classes_by_code().get(code, HimaliaError)
        return found.from_message(message, code=code, **data)


class BadRequest(HimaliaError):
    code = ErrorCode.BAD_REQUEST


class BadFilter(BadRequest):
    code = ErrorCode.BAD_FILTER


class BadQuery(BadRequest):
    code = ErrorCode.BAD_QUERY


class MessageTooLarge(BadRequest):
    code = ErrorCode.MESSAGE_TOO_LARGE


class BodyTimeout(HimaliaError):
    code = ErrorCode.BODY_TIMEOUT


class FilterFailed(HimaliaError):
    code = ErrorCode.FILTER_FAILED


class Unauthorized(HimaliaError):
    code = ErrorCode.UNAUTHORIZED


class WrongKey(Unauthorized):
    """Credentials were sent and are not valid. These count as failed attempts; sending none does not."""


class Forbidden(Unauthorized):
    code = ErrorCode.FORBIDDEN


class SessionNotFound(HimaliaError):
    code = ErrorCode.SESSION_NOT_FOUND

    def __init__(self, id: str) -> None:
        super().__init__(
            f"there is no session {id!r} that you may end; 'himalia sessions list' shows them", id=id
        )


class TopicNotFound(HimaliaError):
    code = ErrorCode.TOPIC_NOT_FOUND

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} does not exist; create it with POST /topics", topic=topic)


class TopicExists(HimaliaError):
    code = ErrorCode.TOPIC_EXISTS

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} exists already", topic=topic)


class EpochChanged(HimaliaError):
    code = ErrorCode.EPOCH_CHANGED

    def __init__(self, topic: str, expected: str, actual: str) -> None:
        super().__init__(
            f"topic {topic!r} has epoch {actual}, not {expected}: it was deleted and created again, or restored",
            topic=topic,
            expected=expected,
            actual=actual,
        )


class LimitExceeded(HimaliaError):
    pass


class TooManyConnections(LimitExceeded):
    code = ErrorCode.TOO_MANY_CONNECTIONS


class TooManyReaders(LimitExceeded):
    code = ErrorCode.TOO_MANY_READERS


class TooManySubscriptions(LimitExceeded):
    code = ErrorCode.TOO_MANY_SUBSCRIPTIONS


class TooManyTopics(LimitExceeded):
    code = ErrorCode.TOO_MANY_TOPICS


class TooManyProducers(LimitExceeded):
    code = ErrorCode.TOO_MANY_PRODUCERS


class TooManyBodies(LimitExceeded):
    code = ErrorCode.TOO_MANY_BODIES


class RateLimited(LimitExceeded):
    code = ErrorCode.RATE_LIMITED


class TooManyKernels(LimitExceeded):
    code = ErrorCode.TOO_MANY_KERNELS


class TooManyRequests(LimitExceeded):
    code = ErrorCode.TOO_MANY_REQUESTS


class QueryTooLarge(LimitExceeded):
    code = ErrorCode.QUERY_TOO_LARGE


class KernelNotFound(HimaliaError):
    code = ErrorCode.KERNEL_NOT_FOUND

    def __init__(self, kernel_id: str) -> None:
        super().__init__(
            f"there is no kernel {kernel_id!r}; GET /api/kernels and `himalia kernel list` show those that run",
            kernel_id=kernel_id,
        )


class KernelUnavailable(HimaliaError):
    code = ErrorCode.KERNEL_UNAVAILABLE


class KernelFailed(HimaliaError):
    code = ErrorCode.KERNEL_FAILED


class ExecutionNotFound(HimaliaError):
    code = ErrorCode.EXECUTION_NOT_FOUND


class TableNotFound(HimaliaError):
    code = ErrorCode.TABLE_NOT_FOUND


class WarehouseNotFound(TableNotFound):
    def __init__(self, path: object) -> None:
        super().__init__(
            f"there are no tables in {path} yet; run `himalia pipeline run --once` first", path=str(path)
        )


class SubscriptionReplaced(HimaliaError):
    """Client side: another connection subscribed with the same topic, key and ``client_id``."""

    code = ErrorCode.REPLACED


class SlowConsumer(HimaliaError):
    code = ErrorCode.SLOW_CONSUMER


class ShuttingDown(HimaliaError):
    code = ErrorCode.SHUTTING_DOWN


class LogUnavailable(HimaliaError):
    """The log cannot store or read now. Nothing of the failed call was stored, so a retry is safe."""

    code = ErrorCode.UNAVAILABLE


class LogFull(LogUnavailable):
    pass


class LogReadOnly(LogUnavailable):
    pass


class LogCorrupt(LogUnavailable):
    pass


class LogLocked(LogUnavailable):
    pass


class LogTooNew(LogUnavailable):
    pass


class SessionsNotStored(HimaliaError):
    """Sessions have ended, but the file of sessions could not be updated yet."""

    code = ErrorCode.UNAVAILABLE

    def __init__(self) -> None:
        super().__init__(
            "the session has ended, but that cannot be stored now; the server tries again every second, and until "
            "then a crash would bring the session back"
        )


class IssuerUnavailable(HimaliaError):
    """A JSON Web Token cannot be verified now, because its issuer's keys cannot be fetched."""

    code = ErrorCode.UNAVAILABLE


class ConnectionFailed(HimaliaError):
    code = ErrorCode.CONNECTION_FAILED


class DataLost(HimaliaError):
    """Client side, if the reader requested it: retention or a deletion removed records before they were read."""

    code = ErrorCode.DATA_LOST


class ConfigurationError(HimaliaError):
    code = ErrorCode.BAD_CONFIGURATION


class WarehouseLocked(ConfigurationError):
    def __init__(self, path: str, holder: str) -> None:
        super().__init__(
            f"the warehouse {path} is in use by {holder}: wait for it, stop it, or name another with --warehouse",
            path=path,
            holder=holder,
        )


class InternalError(HimaliaError):
    code = ErrorCode.INTERNAL


@cache
def _classes_by_code() -> dict[str, type[HimaliaError]]:
    """The topmost class of each code."""
    classes: dict[str, type[HimaliaError]] = {}
    level: list[type[HimaliaError]] = HimaliaError.__subclasses__()
    while level:
        for error_class in level:
            if "code" in vars(error_class):
                classes.setdefault(error_class.code, error_class)
        level = [below for error_class in level for below in error_class.__subclasses__()]
    return classes
