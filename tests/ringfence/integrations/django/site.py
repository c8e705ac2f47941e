"""Django project in one module, for tests. Its limits count in this process."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import django
from asgiref.sync import iscoroutinefunction
from django.conf import settings

if not settings.configured:
    settings.configure(
        ALLOWED_HOSTS=["*"],
        SECRET_KEY="for tests",
        ROOT_URLCONF=__name__,
        INSTALLED_APPS=[
            "django.contrib.contenttypes",
            "django.contrib.auth",
            "rest_framework",
            "ringfence.integrations.django",
        ],
        MIDDLEWARE=[
            f"{__name__}.authenticate_by_header",
            "ringfence.integrations.django.RateLimitMiddleware",
        ],
        REST_FRAMEWORK={"DEFAULT_AUTHENTICATION_CLASSES": [], "UNAUTHENTICATED_USER": None},
        LOGGING_CONFIG=None,
        USE_TZ=True,
    )
    django.setup()

from django.http import (
    Http404,
    HttpRequest,
    HttpResponse,
    StreamingHttpResponse,
)
from django.urls import URLPattern, include, path
from django.utils.decorators import (
    async_only_middleware,
    method_decorator,
    sync_and_async_middleware,
)
from django.views import View
from rest_framework.decorators import api_view, throttle_classes
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from ringfence.integrations.costs import reported_cost, set_cost
from ringfence.integrations.django import decision_of, exempt, rate_limit
from ringfence.integrations.django.rest import RingfenceThrottle


@dataclass
class User:
    pk: str
    is_authenticated: bool = True


@sync_and_async_middleware
def authenticate_by_header(
    get_response: Callable[[HttpRequest], Any],
) -> Callable[[HttpRequest], Any]:
    """Authenticate by a header; asynchronous code fetches the user with `auser`, as in Django."""

    def user_of(request: HttpRequest) -> User | None:
        name = request.headers.get("x-user")
        return User(name) if name else None

    if iscoroutinefunction(get_response):

        async def asynchronous(request: HttpRequest) -> HttpResponse:
            async def auser() -> User | None:
                await asyncio.sleep(0)
                return user_of(request)

            request.auser = auser  # type: ignore[assignment]
            return await get_response(request)

        return asynchronous

    def synchronous(request: HttpRequest) -> HttpResponse:
        request.user = user_of(request)  # type: ignore[assignment]
        return get_response(request)

    return synchronous


def free(request: HttpRequest, **_: object) -> HttpResponse:
    return HttpResponse("free")


@rate_limit("1/hour")
def plain(request: HttpRequest) -> HttpResponse:
    decision = decision_of(request)
    assert decision is not None
    return HttpResponse(str(decision.remaining))


@rate_limit("1/hour", block=False)
def unblocked(request: HttpRequest) -> HttpResponse:
    decision = decision_of(request)
    assert decision is not None
    return HttpResponse("in time" if decision.allowed else "over the limit")


@rate_limit("1/hour")
async def asynchronous(request: HttpRequest) -> HttpResponse:
    await asyncio.sleep(0)
    return HttpResponse("async")


@rate_limit("1/hour", keys="user_or_ip")
async def per_user(request: HttpRequest) -> HttpResponse:
    return HttpResponse("async")


def _failed(response: Any) -> bool:
    return response.status in (401, 404, 500)


@rate_limit("2/hour", deduct_when=_failed)
def login(request: HttpRequest, password: str) -> HttpResponse:
    match password:
        case "right":
            return HttpResponse("welcome")
        case "lost":
            raise Http404
        case "broken":
            raise ZeroDivisionError
    return HttpResponse(status=401)


@rate_limit("2/hour", deduct_when=_failed)
async def login_async(request: HttpRequest, password: str) -> HttpResponse:
    return login.__wrapped__(request, password)  # type: ignore[attr-defined, no-any-return]


entered: list[asyncio.Event] = []
"""Events that `forever` sets when it begins."""


@rate_limit("1 concurrent ttl 1h", scope="slots")
async def forever(request: HttpRequest) -> HttpResponse:
    entered.pop().set()
    await asyncio.sleep(3600)
    raise AssertionError


threads: list[tuple[threading.Event, threading.Event]] = []
"""Events by which the next sync view states that it runs, and waits for its end."""


def undecorated(request: HttpRequest) -> HttpResponse:
    if threads:
        entered, may_end = threads.pop()
        entered.set()
        assert may_end.wait(5)
    return HttpResponse(status=401)


sync_with_slot = rate_limit("1 concurrent ttl 1h", scope="slots")(undecorated)
sync_login = rate_limit("2/hour", deduct_when=_failed)(undecorated)


@rate_limit("1 concurrent ttl 1h", scope="slots")
async def with_slot(request: HttpRequest) -> HttpResponse:
    return HttpResponse("free again")


view_name: ContextVar[str] = ContextVar("view_name", default="")


def named(request: HttpRequest) -> HttpResponse:
    view_name.set("named")
    return HttpResponse("named")


@async_only_middleware
def with_view_name(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Write a context variable that the view has set into a header."""

    async def served(request: HttpRequest) -> HttpResponse:
        response: HttpResponse = await get_response(request)
        response.headers["X-View"] = view_name.get()
        return response

    return served


def unmodified(get_response: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
    """Send the status 304 in place of each response, as `ConditionalGetMiddleware` does."""

    def replaced(request: HttpRequest) -> HttpResponse:
        get_response(request)
        return HttpResponse(status=304)

    return replaced


@rate_limit("1/hour", scope="running", deduct_when=lambda response: False)
def stream(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(iter("abc"))


@rate_limit("1/hour", scope="running async", deduct_when=lambda response: False)
async def async_stream(request: HttpRequest) -> StreamingHttpResponse:
    async def parts() -> AsyncIterator[bytes]:
        for part in (b"a", b"b", b"c"):
            yield part

    return StreamingHttpResponse(parts())


@rate_limit("1000/hour", scope="tokens", cost_after=reported_cost)
def tokens(request: HttpRequest) -> StreamingHttpResponse:
    def parts() -> Iterator[bytes]:
        yield b"a"
        set_cost(request, 700)

    return StreamingHttpResponse(parts())


@rate_limit("1000/hour", scope="tokens", cost_after=reported_cost)
async def async_tokens(request: HttpRequest) -> StreamingHttpResponse:
    async def parts() -> AsyncIterator[bytes]:
        yield b"a"
        set_cost(request, 700)

    return StreamingHttpResponse(parts())


@method_decorator(rate_limit("1/hour"), name="dispatch")
class Plain(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("class")


@method_decorator(rate_limit("1/hour"), name="dispatch")
class Asynchronous(View):
    async def get(self, request: HttpRequest) -> HttpResponse:
        await asyncio.sleep(0)
        return HttpResponse("class")


class Wrong(View):
    @rate_limit("1/hour")
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("never")


@exempt
def open_view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("open")


@exempt
@rate_limit("2/hour", scope="half open")
async def half_open(request: HttpRequest) -> HttpResponse:
    return HttpResponse("half open")


@method_decorator(exempt, name="dispatch")
class Open(View):
    def get(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse("open")


class Searches(RingfenceThrottle):
    limit = "1/hour"


class Failures(RingfenceThrottle):
    limit = "1/hour"
    options = {"deduct_when": _failed}  # noqa: RUF012 - as in REST framework


class FailedSearch(APIView):
    throttle_classes = [Failures]  # noqa: RUF012 - as above

    def get(self, request: Request) -> Response:
        return Response("found")


class Search(APIView):
    throttle_classes = [Searches]  # noqa: RUF012 - as in REST framework

    def get(self, request: Request) -> Response:
        return Response("found")


@api_view(["GET"])
@throttle_classes([Searches])
def other_search(request: Request) -> Response:
    return Response("found")


@api_view(["GET"])
@rate_limit("1/hour")
def decorated_search(request: Request) -> Response:
    return Response("found")


_users: list[URLPattern] = [path("users/<int:number>", free)]
urlpatterns = [
    path("free", free),
    path("plain", plain),
    path("unblocked", unblocked),
    path("async", asynchronous),
    path("per-user", per_user),
    path("login/<password>", login),
    path("login-async/<password>", login_async),
    path("forever", forever),
    path("with-slot", with_slot),
    path("undecorated", undecorated),
    path("sync-with-slot", sync_with_slot),
    path("sync-login", sync_login),
    path("named", named),
    path("stream", stream),
    path("tokens", tokens),
    path("async-tokens", async_tokens),
    path("async-stream", async_stream),
    path("class", Plain.as_view()),
    path("async-class", Asynchronous.as_view()),
    path("wrong", Wrong.as_view()),
    path("search", Search.as_view()),
    path("failed-search", FailedSearch.as_view()),
    path("other-search", other_search),
    path("decorated-search", decorated_search),
    path("v1/", include([*_users, path("open", open_view)])),
    path("half-open", half_open),
    path("open-class", Open.as_view()),
]
