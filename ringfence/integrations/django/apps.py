"""Django application that registers checks of the rate limit settings."""

from django.apps import AppConfig
from django.core.checks import register

__all__ = ["RingfenceConfig"]


class RingfenceConfig(AppConfig):
    """Configuration of Ringfence as a Django application for `INSTALLED_APPS`; it has no models."""

    name = "ringfence.integrations.django"
    label = "ringfence"
    verbose_name = "Ringfence"

    def ready(self) -> None:
        """Register the checks of the settings for `manage.py check`."""
        from ringfence.integrations.django.checks import check_settings

        register(check_settings)
