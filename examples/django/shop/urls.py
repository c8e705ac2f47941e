"""Views of the project, and their paths."""

from django.http import HttpRequest, HttpResponse
from django.urls import path

from ringfence.integrations.django import rate_limit


def index(request: HttpRequest) -> HttpResponse:
    """Limited by the rules of the domain `web`, as all views here."""
    return HttpResponse("hello")


@rate_limit("5/minute")
async def report(request: HttpRequest) -> HttpResponse:
    """Has its own limit too. Views can be async."""
    return HttpResponse("report")


@rate_limit("3/minute", deduct_when=lambda response: response.status == 401)
def login(request: HttpRequest) -> HttpResponse:
    """Count failed logins only."""
    is_right = request.GET.get("password") == "open sesame"
    return HttpResponse("welcome") if is_right else HttpResponse(status=401)


def healthz(request: HttpRequest) -> HttpResponse:
    """Exempt from limits, because its path is a usual path of health checks."""
    return HttpResponse("ok")


urlpatterns = [
    path("", index),
    path("report", report),
    path("login", login),
    path("healthz", healthz),
]
