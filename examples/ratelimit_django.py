"""Limits around a Django project: its `asgi.py` wraps the application. Here the project is this one file.

`uvicorn ratelimit_django:application` serves it.
"""

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path

from mqcore.ratelimit import RateLimiter, RateLimitMiddleware, Rule

settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, SECRET_KEY="for this example only")
django.setup()


def login(request: HttpRequest) -> HttpResponse:
    """Answer."""
    return HttpResponse("welcome")


urlpatterns = [path("login", login)]

application = RateLimitMiddleware(
    get_asgi_application(),
    limiter=RateLimiter.local(),
    rules=[Rule("/login", "3/h", methods=frozenset({"GET", "POST"}))],
)
