"""A stream consumer whose effect happens exactly once: it saves its offset in the transaction of its effect.

The consumer crashes between staging an invoice and committing it. Nothing of that invoice is left, the offset neither,
and the next run writes it: each order has one invoice, although one order was read twice.

    python examples/stream_consumer.py
"""

import anyio

from alkstore_trio import Store, open_memory

ORDERS = [{"order": number, "cents": 250 * number} for number in range(1, 6)]


class PowerCutError(Exception):
    """What nobody plans for."""


async def write_invoices(store: Store, *, fails_at: int | None = None) -> None:
    """Follow the orders from where the last run got to, until there are no more."""
    orders = store.stream("orders")
    last = (await orders.statistics()).last
    async with orders.subscribe("invoices") as events:
        async for event in events:
            order = event.payload
            print(f"order {order['order']}")
            async with store.transaction() as tx:
                await tx.enqueue_tx("invoices", order)
                await tx.save_offset_tx("orders", "invoices", event.offset)
                if order["order"] == fails_at:
                    raise PowerCutError
            if event.offset == last:
                return


async def main() -> None:
    """Crash once, go on, and count."""
    async with open_memory() as store:
        await store.stream("orders").publish_many(ORDERS)
        try:
            await write_invoices(store, fails_at=3)
        except PowerCutError:
            print("power cut; again from", await store.stream("orders").get_offset("invoices"))
        await write_invoices(store)

        invoices = await store.queue("invoices").jobs()
        print("invoices:", [invoice.payload["order"] for invoice in invoices])
        # Every consumer is past it: now the stream may be shortened.
        consumers = (await store.stream("orders").statistics()).consumers
        print("trimmed:", await store.stream("orders").trim_to(min(consumers.values())))


if __name__ == "__main__":
    anyio.run(main, backend="trio")
