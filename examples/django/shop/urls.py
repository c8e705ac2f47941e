"""The project's views, and where they are."""

from django.http import HttpRequest, HttpResponse
from django.urls import path

from ringfence.integrations.django import rate_limit


def index(request: HttpRequest) -> HttpResponse:
    """Limited by the rules of the domain `web`, as everything here."""
    return HttpResponse("hello")


@rate_limit("5/minute")
async def report(request: HttpRequest) -> HttpResponse:
    """Limited by itself, too; async views as others."""
    return HttpResponse("report")


@rate_limit("3/minute", deduct_when=lambda response: response.status == 401)
def login(request: HttpRequest) -> HttpResponse:
    """Only failures count."""
    is_right = request.GET.get("password") == "open sesame"
    return HttpResponse("welcome") if is_right else HttpResponse(status=401)


def healthz(request: HttpRequest) -> HttpResponse:
    """Exempt, as health checks are."""
    return HttpResponse("ok")


urlpatterns = [
    path("", index),
    path("report", report),
    path("login", login),
    path("healthz", healthz),
]
