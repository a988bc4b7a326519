"""Tasks, which `manage.py mqcore_worker` runs."""

from typing import Any

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task


@task(queue_name="mail")
def send_invoice(order: int) -> str:
    """Send an invoice. The result is kept for an hour."""
    if order < 0:
        raise ValueError(f"there is no order {order}")
    return f"invoice of order {order}"


@task(takes_context=True)
async def describe(context: Any, text: str) -> str:
    """Tasks may be asynchronous, and know their attempt."""
    return f"{text}, attempt {context.attempt}"
