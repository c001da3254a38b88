"""What the tests of joined transactions put into one, and look for, whatever the engine."""

import pytest

from alkstore_trio import Job, Store, SyncJoinedTx

__all__ = ["counts", "everything", "reads_its_own"]


def everything(joined: SyncJoinedTx) -> None:
    """Each kind of effect."""
    joined.enqueue_tx("q", "job", priority=3)
    joined.outbox_enqueue_tx("o", "message")
    joined.publish_tx("s", "event")
    joined.publish_with_key_tx("s", "key", "keyed")
    joined.save_offset_tx("s", "consumer", 1)
    joined.notify_tx("c")


async def counts(store: Store) -> list[int]:
    """What others see of it."""
    return [
        (await store.queue("q").statistics()).pending,
        (await store.outbox("o").statistics()).pending,
        len(await store.stream("s").read_since(0, 10)),
        await store.stream("s").get_offset("consumer"),
    ]


def reads_its_own(joined: SyncJoinedTx) -> Job:
    """Check that a transaction sees what it does; the job that it has enqueued."""
    job_id = joined.enqueue_tx("q", {"a": 1}, delay=60)
    offset = joined.publish_tx("s", "event")
    assert joined.save_offset_tx("s", "consumer", 0) is False
    job = joined.get_job_tx("q", job_id)
    assert isinstance(job, Job)
    assert job.payload == {"a": 1}
    assert job.run_at == pytest.approx(job.created_at + 60)
    assert joined.get_job_tx("other", job_id) is None
    assert [event.offset for event in joined.read_since_tx("s", 0, 5)] == [offset]
    assert joined.read_since_tx("s", 0, 0) == []
    assert joined.save_offset_tx("s", "consumer", offset) is True
    assert joined.get_offset_tx("s", "consumer") == offset
    assert joined.read_from_consumer_tx("s", "consumer", 5) == []
    return job
