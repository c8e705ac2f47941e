"""Django application that registers the checks of the settings."""

from django.apps import AppConfig
from django.core.checks import register

__all__ = ["RingfenceConfig"]


class RingfenceConfig(AppConfig):
    """The Django application; it has no models."""

    name = "ringfence.integrations.django"
    label = "ringfence"
    verbose_name = "Ringfence"

    def ready(self) -> None:
        """Register the checks."""
        from ringfence.integrations.django.checks import check_settings

        register(check_settings)
