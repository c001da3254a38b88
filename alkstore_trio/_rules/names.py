"""What a name may be, and the names that the library derives from others.

A name is judged at the entry point and taken as it is: never trimmed, never folded.
"""

import re
from functools import lru_cache

from .._errors import InvalidName, ReservedName

__all__ = [
    "LEADER",
    "RECONNECTED",
    "RESERVED_PREFIX",
    "SCHEDULE_WAKE",
    "UNWRITABLE",
    "backing_queue",
    "local",
    "queue_wake",
    "shared",
    "stream_wake",
]

UNWRITABLE = re.compile("[\0\ud800-\udfff]")  # what no database stores as text

RESERVED_PREFIX = "__alkstore_"
LEADER = "__alkstore_scheduler"
SCHEDULE_WAKE = "__alkstore_schedule_wake"
RECONNECTED = "__alkstore_listener_reconnected__"

_LONGEST = 512  # bytes of UTF-8


def local(name: str) -> str:
    """A worker id, a consumer, a lock's owner or a stream key, checked."""
    if type(name) is not str:
        if not isinstance(name, str):
            raise TypeError(f"a name must be a str, not {type(name).__name__}")
        name = str.__str__(name)  # a plain str, whatever subclass came, before anybody asks what it equals
    return _judged(name)


@lru_cache(maxsize=1_024)  # a worker's id is judged at each of its claims
def _judged(name: str) -> str:
    if name.isascii():
        size = len(name)
    else:
        try:
            size = len(name.encode())
        except UnicodeEncodeError:
            raise InvalidName(name) from None
    if size > _LONGEST or not name.strip() or "\0" in name:
        raise InvalidName(name)
    return name


def shared(name: str) -> str:
    """The name of a channel, stream, queue, outbox, lock or schedule, checked."""
    name = local(name)
    if name.startswith(RESERVED_PREFIX):
        raise ReservedName(name)
    return name


def backing_queue(outbox: str) -> str:
    """The queue that an outbox stands on."""
    return f"__alkstore_outbox:{outbox}"


def stream_wake(stream: str) -> str:
    """The channel that an event of the stream wakes."""
    return f"__alkstore_stream_wake:{stream}"


def queue_wake(queue: str) -> str:
    """The channel that new work of the queue wakes."""
    return f"__alkstore_queue_wake:{queue}"
