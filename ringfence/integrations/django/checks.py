"""What `manage.py check` says of the rate limits."""

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
    """Look for settings that make no sense, and for those that will not do what they seem to."""
    given = getattr(settings, "RINGFENCE", {})
    try:
        limits = read_settings(given)
    except (ConfigError, TypeError) as error:
        return [checks.Error(str(error), hint="Mend the setting RINGFENCE.", id="ringfence.E001")]
    found: list[CheckMessage] = []
    middleware = list(settings.MIDDLEWARE)
    if MIDDLEWARE not in middleware:
        if limits.policy.limits_something:
            found.append(
                checks.Warning(
                    "RINGFENCE names a limit for all requests, but nothing checks it.",
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
                "The user is counted, but not known yet where RateLimitMiddleware stands.",
                hint=f"Move {MIDDLEWARE!r} below {_AUTHENTICATION!r}.",
                id="ringfence.W002",
            )
        )
    if settings.SECURE_PROXY_SSL_HEADER and not limits.policy.settings.trusted_proxies:
        found.append(
            checks.Warning(
                "SECURE_PROXY_SSL_HEADER tells of a proxy, yet none is trusted: all clients behind "
                "it are counted as one.",
                hint="Set RINGFENCE['TRUSTED_PROXIES'] to the proxy's addresses.",
                id="ringfence.W003",
            )
        )
    return found
