"""Rate limits for Django: a middleware, a decorator for views, a throttle for REST framework.

    INSTALLED_APPS = [..., "ringfence.integrations.django"]          # for `manage.py check`
    MIDDLEWARE = [..., "ringfence.integrations.django.RateLimitMiddleware"]
    RINGFENCE = {"URL": "ringfence://...", "LIMIT": "1000/hour", "KEYS": "user_or_ip"}

    from ringfence.integrations.django import rate_limit

    @rate_limit("5/minute")
    def report(request): ...

It works under WSGI and ASGI, for sync and async views. The throttle is in the module `rest`, which
needs the REST framework.
"""

from ringfence.integrations.django.decorator import rate_limit
from ringfence.integrations.django.exemptions import exempt
from ringfence.integrations.django.integration import decision_of
from ringfence.integrations.django.middleware import RateLimitMiddleware

__all__ = ["RateLimitMiddleware", "decision_of", "exempt", "rate_limit"]
