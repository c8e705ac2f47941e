"""A throttle for Django REST framework.

    class Searches(RingfenceThrottle):
        limit = "5/minute"

    class SearchView(APIView):
        throttle_classes = [Searches]

Each view has its own counters unless `options` name a `scope`. The framework sends the 429; with
`RateLimitMiddleware` it has the rate limit headers.
"""

from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from rest_framework.throttling import BaseThrottle

from ringfence.errors import ConfigError
from ringfence.http.headers import retry_after_seconds
from ringfence.integrations._core.policy import Policy
from ringfence.integrations._core.settings import LimitSpec, ViewOptions
from ringfence.integrations.django.integration import (
    Integration,
    is_installed,
    project_limits,
    request_state_of,
)

if TYPE_CHECKING:
    from rest_framework.request import Request
    from rest_framework.views import APIView

__all__ = ["RingfenceThrottle"]


class RingfenceThrottle(BaseThrottle):
    """Throttle class for REST framework. A subclass sets the limit."""

    limit: ClassVar[LimitSpec] = None
    """`5/minute`, or None for the rules of the `domain` in `options`."""
    options: ClassVar[ViewOptions] = {"keys": "user_or_ip"}
    """Options of `rate_limit`."""

    def __init__(self) -> None:
        self._wait: float | None = None

    def allow_request(self, request: "Request", view: "APIView") -> bool:
        """Check the limits of one request; return whether it is allowed."""
        state, _ = request_state_of(request._request)
        limits = project_limits()
        name = f"{type(view).__module__}.{type(view).__qualname__}"
        # Classes are hashable; the stubs of the framework say otherwise.
        throttle: Any = type(self)
        refusal = limits.admit(_policy_of(limits, throttle, name), state)
        if state.spent and not is_installed():
            raise ConfigError(
                f"{type(self).__qualname__} charges by the response, which needs the middleware; "
                "add ringfence.integrations.django.RateLimitMiddleware to MIDDLEWARE"
            )
        if refusal is not None:
            self._wait = retry_after_seconds(refusal.refused.decision)
        return refusal is None

    def wait(self) -> float | None:
        """Return the seconds until the same request is allowed; None if it never will be."""
        return self._wait


@cache
def _policy_of(limits: Integration, throttle: type[RingfenceThrottle], view: str) -> Policy:
    return limits.policy_for(view, throttle.limit, throttle.options)
