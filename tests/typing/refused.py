"""What the type checkers must refuse: each line with a `type: ignore` is an error, and one that is none is reported."""

from alkstore_trio import Job, JobHandle, Store, Tx


def blocking(job: Job) -> None: ...


async def of_a_job(job: Job) -> None: ...


async def refused(store: Store, job: Job, tx: Tx) -> None:
    queue = store.queue("q")
    await queue.enqueue(1, 5)  # type: ignore[call-arg]  # options are keyword-only
    await queue.enqueue(1, delay="5")  # type: ignore[arg-type]
    await queue.enqueue(1, later=5)  # type: ignore[call-arg]
    await queue.run_worker(blocking)  # type: ignore[arg-type]
    await store.outbox("o").run_once("w", of_a_job)  # type: ignore[arg-type]
    await queue.jobs("dead")  # type: ignore[arg-type]
    await store.stream("s").read_since(0.5, 1)  # type: ignore[arg-type]
    await store.with_tx(lambda tx: 5)  # type: ignore[arg-type,return-value]
    job.attempts = 5  # type: ignore[misc]  # values are frozen
    queue.claim_tx  # type: ignore[attr-defined]  # noqa: B018 there is none
    tx.claim_tx  # type: ignore[attr-defined]  # noqa: B018


async def a_handle_may_be_missing(store: Store) -> JobHandle:
    return await store.queue("q").claim("w")  # type: ignore[return-value]
