"""Checks of the rate limit settings for `manage.py check`."""

from collections.abc import Sequence

from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage

from ringfence.errors import ConfigError
from ringfence.integrations.django.integration import MIDDLEWARE, read_settings

__all__ = ["check_settings"]

_AUTHENTICATION = "django.contrib.auth.middleware.AuthenticationMiddleware"


def check_settings(
    app_configs: Sequence[AppConfig] | None = None, **_: object
) -> list[CheckMessage]:
    """Return errors for invalid settings, and warnings for settings without effect."""
    given = getattr(settings, "RINGFENCE", {})
    try:
        limits = read_settings(given)
    except (ConfigError, TypeError) as error:
        return [
            checks.Error(str(error), hint="Correct the setting RINGFENCE.", id="ringfence.E001")
        ]
    found: list[CheckMessage] = []
    middleware = list(settings.MIDDLEWARE)
    if MIDDLEWARE not in middleware:
        if limits.policy.has_limits:
            found.append(
                checks.Warning(
                    "RINGFENCE has a limit on all requests, but the middleware is missing.",
                    hint=f"Add {MIDDLEWARE!r} to MIDDLEWARE.",
                    id="ringfence.W001",
                )
            )
    elif (
        limits.policy.needs_user
        and _AUTHENTICATION not in middleware[: middleware.index(MIDDLEWARE)]
    ):
        found.append(
            checks.Warning(
                "The keys include the user, but RateLimitMiddleware runs before authentication.",
                hint=f"Move {MIDDLEWARE!r} below {_AUTHENTICATION!r}.",
                id="ringfence.W002",
            )
        )
    if settings.SECURE_PROXY_SSL_HEADER and not limits.policy.settings.trusted_proxies:
        found.append(
            checks.Warning(
                "SECURE_PROXY_SSL_HEADER implies a proxy, but no proxy is trusted: all clients "
                "behind it share one counter.",
                hint="Set RINGFENCE['TRUSTED_PROXIES'] to the proxy's addresses.",
                id="ringfence.W003",
            )
        )
    return found
