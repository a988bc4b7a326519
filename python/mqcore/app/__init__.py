"""The application layer: handlers of messages, their results, retries and dependencies, declared and run for you.

::

    app = mqcore.App("tmqp://localhost:2622", name="billing")

    @app.subscriber("orders/1001", concurrency=8, retry=Retry(5, backoff=Backoff("1s", max="5m")))
    @app.publisher("invoices/2001")
    async def bill(order: Order, rates: Annotated[Rates, Depends(get_rates)]) -> Invoice:
        return Invoice(order.id, order.quantity * rates[order.sku])

    # $ mqcore run shop:app --workers 4

Everything that the code declares is checked and resolved when the app starts: signatures, types of bodies, cycles of
dependencies, options of queues. `mqcore.testing.TestBroker(app)` runs it against a broker in memory.
"""

from mqcore.app.application import App
from mqcore.app.dependencies import Depends
from mqcore.app.group import Group
from mqcore.app.hosting import combine_lifespans
from mqcore.app.middleware import CallNext, Middleware, Outgoing
from mqcore.app.policies import AckPolicy, BadBody, Reject, Retry
from mqcore.app.publisher import Publisher

__all__ = [
    "AckPolicy",
    "App",
    "BadBody",
    "CallNext",
    "Depends",
    "Group",
    "Middleware",
    "Outgoing",
    "Publisher",
    "Reject",
    "Retry",
    "combine_lifespans",
]
