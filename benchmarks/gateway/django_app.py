"""Django site for benchmarks, in one form without limits and in others with limits.

The middleware reads the project's settings when the site is created, so each site is created with
its own settings.
"""

from collections.abc import Sequence
from typing import Any

import django
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse
from django.test.utils import override_settings
from django.urls import path

from ringfence.blocking import BlockingLimiter

__all__ = ["django_apps", "urlpatterns"]

_OURS = "ringfence.integrations.django.RateLimitMiddleware"


def _hello(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello", content_type="text/plain")


urlpatterns = [path("", _hello)]


def django_apps(limiters: Sequence[BlockingLimiter]) -> list[Any]:
    """Return a site without limits and one site for each limiter, as WSGI applications."""
    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], ROOT_URLCONF=__name__, LOGGING_CONFIG=None)
        django.setup()
    with override_settings(MIDDLEWARE=[]):
        sites = [WSGIHandler()]
    for limiter in limiters:
        given = {"URL": limiter, "DOMAIN": "bench"}
        with override_settings(MIDDLEWARE=[_OURS], RINGFENCE=given):
            sites.append(WSGIHandler())
    return sites
