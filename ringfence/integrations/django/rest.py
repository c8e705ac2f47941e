"""A throttle for Django REST framework.

    class Searches(RingfenceThrottle):
        limit = "5/minute"

    class SearchView(APIView):
        throttle_classes = [Searches]

Its budget is the view's own, unless `options` name a `scope`. The framework makes the 429; with
`RateLimitMiddleware` in place it has the limit headers, too.
"""

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from rest_framework.throttling import BaseThrottle

from ringfence.errors import ConfigError
from ringfence.http.headers import retry_after_seconds
from ringfence.integrations._core.policy import Policy
from ringfence.integrations._core.settings import LimitSpec, ViewOptions
from ringfence.integrations.django.integration import Integration, face, is_installed, visit_of

if TYPE_CHECKING:
    from rest_framework.request import Request
    from rest_framework.views import APIView

__all__ = ["RingfenceThrottle"]


class RingfenceThrottle(BaseThrottle):
    """Throttles by a limit; subclass it to say which."""

    limit: ClassVar[LimitSpec] = None
    """`5/minute`, or None for the rules of the `domain` in `options`."""
    options: ClassVar[ViewOptions] = {"keys": "user_or_ip"}
    """As `rate_limit` takes them."""

    def __init__(self) -> None:
        self._wait: float | None = None

    def allow_request(self, request: "Request", view: "APIView") -> bool:
        """Check one request."""
        visit, _ = visit_of(request._request)
        limits = face()
        name = f"{type(view).__module__}.{type(view).__qualname__}"
        # Hashable as every class is, though its stubs make mypy think otherwise.
        throttle: Any = type(self)
        refusal = limits.admit(_policy_of(limits, throttle, name), visit)
        if visit.spent and not is_installed():
            raise ConfigError(
                f"{type(self).__qualname__} charges by the answer, which only the middleware sees: "
                "add ringfence.integrations.django.RateLimitMiddleware to MIDDLEWARE"
            )
        if refusal is not None:
            self._wait = retry_after_seconds(refusal.refused.decision)
        return refusal is None

    def wait(self) -> float | None:
        """Seconds until the same request would pass; None when no wait helps."""
        return self._wait


@cache
def _policy_of(limits: Integration, throttle: type[RingfenceThrottle], view: str) -> Policy:
    return limits.policy_for(view, throttle.limit, throttle.options)
