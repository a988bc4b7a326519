"""Rate limits: of this process, or shared by all processes through a broker.

::

    from mqcore.ratelimit import RateLimiter

    limiter = RateLimiter.local()                          # this process only, without a socket
    if not limiter.check("user:7", "100/s"):
        ...

    limiter = RateLimiter("throttr://127.0.0.1:9000?value=uint64", on_unavailable="allow")
    verdict = await limiter.check("user:7", "100/s", cost=5)
    print(verdict.remaining, verdict.retry_after)

A limit is text such as ``"20/m"``, ``"100/10s"`` or ``"5/h"`` (units ms, s, m, h, d), or a `Limit`. A check is atomic:
concurrent checks never exceed the limit. docs/ratelimit.md helps to choose a limiter and a strategy; docs/limits.md
describes how the strategies count.
"""

from mqcore._core import Verdict
from mqcore.ratelimit.asgi import RateLimitMiddleware, Rule
from mqcore.ratelimit.limits import Limit
from mqcore.ratelimit.local import BoundLimit, LocalRateLimiter
from mqcore.ratelimit.remote import RateLimiter, SyncRateLimiter

__all__ = [
    "BoundLimit",
    "Limit",
    "LocalRateLimiter",
    "RateLimitMiddleware",
    "RateLimiter",
    "Rule",
    "SyncRateLimiter",
    "Verdict",
]
