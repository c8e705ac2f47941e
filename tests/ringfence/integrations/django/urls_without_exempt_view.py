"""URLs of a Django project without an exempt view."""

from django.urls import path

from tests.ringfence.integrations.django.site import free

urlpatterns = [path("users/<int:number>", free)]
