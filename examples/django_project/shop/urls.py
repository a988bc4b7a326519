"""Views: place an order, and look at its invoice."""

from functools import partial

from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

from shop.tasks import send_invoice


def place(request: HttpRequest, order: int) -> JsonResponse:
    """Enqueue the invoice."""
    result = send_invoice.enqueue(order)
    return JsonResponse({"result": result.id})


def place_on_commit(request: HttpRequest, order: int) -> JsonResponse:
    """Enqueue the invoice when the transaction commits. If it rolls back, there is no invoice."""
    with transaction.atomic():
        transaction.on_commit(partial(send_invoice.enqueue, order))
        transaction.set_rollback(request.GET.get("rollback") == "1")
    return JsonResponse({})


def invoice(request: HttpRequest, result_id: str) -> JsonResponse:
    """Show the result of a task, in any process of the project."""
    result = send_invoice.get_result(result_id)
    return JsonResponse({"status": result.status, "text": result.return_value if result.is_finished else None})


urlpatterns = [
    path("orders/<int:order>", place),
    path("committed/<int:order>", place_on_commit),
    path("invoices/<str:result_id>", invoice),
]
