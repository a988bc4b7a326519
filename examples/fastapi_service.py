"""FastAPI with a broker, subscriber, job, limit and dashboard: `uvicorn fastapi_service:api`, and for its jobs
`mqcore worker fastapi_service:jobs`."""

import os

from fastapi import Depends, FastAPI
from fastapi.responses import RedirectResponse

import mqcore
from mqcore.fastapi import RateLimit
from mqcore.jobs import Jobs
from mqcore.ratelimit import RateLimiter

jobs = Jobs()
broker = mqcore.Broker(listen=jobs.url, admin=os.getenv("MQCORE_ADMIN", "http://127.0.0.1:8161"))
app = mqcore.App(broker)
api = FastAPI(lifespan=app.lifespan)


@jobs.task(retries=3)
def send_invoice(sku: str, quantity: int) -> str:  # noqa: D103
    return f"invoice for {quantity} x {sku}"


@app.subscriber("orders/1001")
async def bill(order: dict[str, int]) -> None:  # noqa: D103
    for sku, quantity in order.items():
        await send_invoice.aenqueue(sku, quantity)


@api.post("/orders", status_code=202, dependencies=[Depends(RateLimit(RateLimiter.local(), "5/m"))])
async def place(order: dict[str, int]) -> None:  # noqa: D103
    await app.publish("orders/1001", order)


@api.get("/dashboard")
async def dashboard() -> RedirectResponse:  # noqa: D103
    return RedirectResponse(broker.admin_url or "/")
