"""A trio application: a restaurant whose desk, kitchen and board are tasks of one nursery.

An order is an event for the board and a job for the kitchen, both or neither. The kitchen hands its work on in the same
way: the dish is announced in one transaction with the bill.

    python examples/trio_app.py
"""

from functools import partial

import trio

from alkstore_trio import Job, StopToken, Store, open_memory

MENU = {"soup": 4, "pasta": 9, "salad": 6}


async def board(store: Store, stop: StopToken, task_status: trio.TaskStatus[None]) -> None:
    """Show what happens, in order, until every dish is ready."""
    waiting = set(MENU)
    async with store.stream("restaurant").subscribe("board") as events:
        task_status.started()
        async for event in events:
            print(f"{event.key}: {event.payload['dish']}")
            await events.save_offset(event.offset)
            if event.key == "ready":
                waiting.discard(event.payload["dish"])
            if not waiting:
                stop.cancel()
                return


async def desk(store: Store) -> None:
    """Take the orders."""
    for dish in MENU:
        async with store.transaction() as tx:
            await tx.publish_with_key_tx("restaurant", "ordered", {"dish": dish})
            await tx.enqueue_tx("kitchen", {"dish": dish})


async def kitchen(store: Store, stop: StopToken, task_status: trio.TaskStatus[None]) -> None:
    """Cook, one dish at a time, until told to stop."""

    async def cook(job: Job) -> None:
        dish = job.payload["dish"]
        async with store.transaction() as tx:
            await tx.publish_with_key_tx("restaurant", "ready", {"dish": dish})
            await tx.enqueue_tx("bills", {"dish": dish, "price": MENU[dish]})

    await store.queue("kitchen").run_worker(cook, stop=stop, task_status=task_status)


async def main() -> None:
    """Run the restaurant, then add up the bills."""
    stop = StopToken()
    async with open_memory() as store:
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(board, store, stop))
            await desk(store)
            await nursery.start(partial(kitchen, store, stop))

        bills = await store.queue("bills").claim_batch("accounting", 100)
        print("takings:", sum(bill.job.payload["price"] for bill in bills))
        await store.queue("bills").ack_batch(bills)


if __name__ == "__main__":
    trio.run(main)
