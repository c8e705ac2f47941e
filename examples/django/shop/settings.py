"""Settings of the project. Those of Ringfence are at the end."""

import os

SECRET_KEY = os.environ.get("SECRET_KEY", "only for this example")
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
ROOT_URLCONF = "shop.urls"
USE_TZ = True

INSTALLED_APPS = ["ringfence.integrations.django"]  # Needed by `manage.py check`.
MIDDLEWARE = [
    "django.middleware.common.CommonMiddleware",
    "ringfence.integrations.django.RateLimitMiddleware",
]
# The address of the cluster is in the environment: RINGFENCE_URL.
RINGFENCE = {"DOMAIN": "web", "KEYS": "client=ip"}
