"""Durable queues, streams, locks, schedules and an outbox for trio and asyncio, over one store contract."""

from ._errors import AlkstoreError as AlkstoreError
from ._errors import Closed as Closed
from ._errors import CodecError as CodecError
from ._errors import CommitUnknown as CommitUnknown
from ._errors import DatabaseError as DatabaseError
from ._errors import Discard as Discard
from ._errors import InvalidName as InvalidName
from ._errors import InvalidSpec as InvalidSpec
from ._errors import LeadershipLost as LeadershipLost
from ._errors import LockHeld as LockHeld
from ._errors import LockLost as LockLost
from ._errors import PayloadTooLarge as PayloadTooLarge
from ._errors import ReservedName as ReservedName
from ._errors import Snooze as Snooze
from ._lock import LockHandle as LockHandle
from ._open import open_memory as open_memory
from ._open import open_postgres as open_postgres
from ._open import open_sqlite as open_sqlite
from ._open import open_store as open_store
from ._outbox import Outbox as Outbox
from ._queue import JobHandle as JobHandle
from ._queue import Queue as Queue
from ._receivers import EventReceiver as EventReceiver
from ._receivers import WakeReceiver as WakeReceiver
from ._store import Store as Store
from ._stream import Stream as Stream
from ._tx import JoinedTx as JoinedTx
from ._tx import SyncJoinedTx as SyncJoinedTx
from ._tx import Tx as Tx
from ._values import Job as Job
from ._values import JobState as JobState
from ._values import QueueStatistics as QueueStatistics
from ._values import Schedule as Schedule
from ._values import ScheduleOptions as ScheduleOptions
from ._values import ScheduleState as ScheduleState
from ._values import StreamEvent as StreamEvent
from ._values import StreamStatistics as StreamStatistics
from ._values import Wake as Wake
from ._waiting import StopToken as StopToken

__all__ = [
    "AlkstoreError",
    "Closed",
    "CodecError",
    "CommitUnknown",
    "DatabaseError",
    "Discard",
    "EventReceiver",
    "InvalidName",
    "InvalidSpec",
    "Job",
    "JobHandle",
    "JobState",
    "JoinedTx",
    "LeadershipLost",
    "LockHandle",
    "LockHeld",
    "LockLost",
    "Outbox",
    "PayloadTooLarge",
    "Queue",
    "QueueStatistics",
    "ReservedName",
    "Schedule",
    "ScheduleOptions",
    "ScheduleState",
    "Snooze",
    "StopToken",
    "Store",
    "Stream",
    "StreamEvent",
    "StreamStatistics",
    "SyncJoinedTx",
    "Tx",
    "Wake",
    "WakeReceiver",
    "open_memory",
    "open_postgres",
    "open_sqlite",
    "open_store",
]
