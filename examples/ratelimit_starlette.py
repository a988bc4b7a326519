"""Limits around a Starlette application; FastAPI is the same. `uvicorn ratelimit_starlette:app` serves it.

With a broker, all processes share the limits: `mqcore serve --listen "throttr://127.0.0.1:9000?value=uint64"`, and
`RateLimiter("throttr://127.0.0.1:9000?value=uint64", on_unavailable="allow")` in place of the local one.
"""

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from mqcore.ratelimit import RateLimiter, RateLimitMiddleware, Rule


async def search(request: Request) -> PlainTextResponse:
    """Answer."""
    return PlainTextResponse("found")


RULES = [
    Rule("/*", "100/s", name="client"),
    Rule("/search", "5/m", name="search", cost=lambda scope: 2 if b"deep" in scope["query_string"] else 1),
]

app = Starlette(
    routes=[Route("/search", search)],
    middleware=[Middleware(RateLimitMiddleware, limiter=RateLimiter.local(), rules=RULES)],
)
