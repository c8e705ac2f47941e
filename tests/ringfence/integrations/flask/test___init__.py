"""Flask extension."""

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import pytest
from flask import Blueprint, Flask, Response, stream_with_context
from flask.views import MethodView
from flask_login import LoginManager, UserMixin

import ringfence.blocking
from ringfence import ConfigError
from ringfence.blocking import BlockingLimiter
from ringfence.integrations.flask import RateLimits, TooManyRequests

RULES = {
    "domain": "api",
    "descriptors": [
        {"key": "client", "rate_limit": {"unit": "hour", "requests_per_unit": 2}},
        {
            "key": "running",
            "rate_limit": {"unit": "hour", "requests_per_unit": 1, "algorithm": "concurrency"},
        },
    ],
}


@pytest.fixture(scope="module")
def shared() -> Iterator[BlockingLimiter]:
    with ringfence.blocking.local(RULES) as limiter:
        yield limiter


@pytest.fixture
def limiter(shared: BlockingLimiter, request: pytest.FixtureRequest) -> BlockingLimiter:
    shared.reset("api", {"client": "127.0.0.1"})
    return shared


@pytest.fixture
def app(request: pytest.FixtureRequest) -> Flask:
    # The name of the test is part of each budget's name, so tests share no budget.
    return Flask(request.node.name)


@pytest.fixture
def limits(limiter: BlockingLimiter, request: pytest.FixtureRequest) -> RateLimits:
    def test(_: object) -> str:
        return str(request.node.name)

    return RateLimits(limiter=limiter, keys={"test": test, "client": "ip"})


def statuses(app: Flask, *paths: str, **options: Any) -> list[int]:
    client, seen = app.test_client(), []
    for path in paths:
        with client.get(path, **options) as response:  # A server also closes each response.
            seen.append(response.status_code)
    return seen


def view() -> str:
    return "hello"


def view_named(name: str) -> Callable[[], str]:
    def other() -> str:
        return name

    other.__name__ = other.__qualname__ = name
    return other


def test_each_view_has_its_own_budget_for_any_order_of_decorators(
    app: Flask, limits: RateLimits
) -> None:
    @app.get("/below")
    @limits.limit("1/hour")
    def below() -> str:
        return "below"

    @limits.limit("1/hour")
    @app.get("/above")
    def above() -> str:
        return "above"

    @app.get("/async")
    @limits.limit("1/hour")
    async def asynchronous() -> str:
        return "async"

    app.get("/free")(view_named("free"))
    limits.init_app(app)

    assert statuses(app, "/below", "/below") == [200, 429]
    assert statuses(app, "/above", "/above") == [200, 429]
    assert statuses(app, "/async", "/async") == [200, 429]
    assert statuses(app, "/free", "/free") == [200, 200]
    assert app.test_client().get("/below").json["status"] == 429


def test_rules_limit_all_requests_including_those_without_a_view(
    app: Flask, limiter: BlockingLimiter
) -> None:
    RateLimits(app, limiter, domain="api")
    app.get("/")(view_named("index"))
    client = app.test_client()

    first = client.get("/")
    assert first.headers["RateLimit"].startswith('"client";r=1;t=')
    assert client.get("/nowhere").status_code == 404
    refused = client.get("/nowhere", headers={"Accept": "text/html"})
    assert refused.status_code == 429
    assert b"<h1>Too many requests</h1>" in refused.data
    assert len(refused.headers.getlist("Retry-After")) == 1
    assert client.options("/").status_code == 200


def test_an_error_handler_can_replace_the_response_of_a_refusal(
    app: Flask, limits: RateLimits
) -> None:
    app.get("/")(limits.limit("1/hour")(view_named("index")))
    limits.init_app(app)

    @app.errorhandler(429)
    def handle_refusal(error: TooManyRequests) -> tuple[str, int]:
        assert 1 <= (error.retry_after or 0) <= 7200
        return f"limit {error.refusal.refused.decision.limit}", 429

    client = app.test_client()
    client.get("/")
    refused = client.get("/")
    assert refused.text == "limit 1"
    assert int(refused.headers["Retry-After"]) >= 1
    assert refused.headers["Cache-Control"] == "no-store"


def test_header_fields_of_an_error_handler_are_kept(app: Flask, limits: RateLimits) -> None:
    app.get("/")(limits.limit("1/hour")(view))
    limits.init_app(app)

    @app.errorhandler(429)
    def handle_refusal(error: TooManyRequests) -> Any:
        return "no", 429, {"Retry-After": str(error.retry_after), "Cache-Control": "private"}

    client = app.test_client()
    client.get("/")
    refused = client.get("/")
    assert refused.headers.getlist("Cache-Control") == ["private"]
    assert len(refused.headers.getlist("Retry-After")) == 1


def test_nested_blueprints_add_their_budgets_and_views_can_be_exempt(
    app: Flask, limits: RateLimits
) -> None:
    outer, inner = Blueprint("outer", __name__), Blueprint("inner", __name__)
    outer.get("/a")(view_named("a"))
    outer.get("/b")(view_named("b"))
    outer.get("/free")(limits.exempt(view_named("free")))
    inner.get("/c")(view_named("c"))
    limits.limit("3/hour")(outer)
    limits.limit("1/hour")(inner)
    outer.register_blueprint(inner)
    app.register_blueprint(outer)
    limits.init_app(app)

    assert statuses(app, "/c", "/c", "/a", "/b") == [200, 429, 200, 429]
    assert statuses(app, "/free", "/free") == [200, 200]


def test_a_whole_blueprint_can_be_exempt(app: Flask, limiter: BlockingLimiter) -> None:
    limits = RateLimits(app, limiter, limit="0/hour")
    blueprint = limits.exempt(Blueprint("open", __name__))
    blueprint.get("/open")(view_named("open"))
    app.register_blueprint(blueprint)
    app.get("/")(view_named("index"))

    assert statuses(app, "/open", "/") == [200, 429]


def test_methods_of_view_classes_are_limited(app: Flask, limits: RateLimits) -> None:
    class Item(MethodView):
        @limits.limit("1/hour")
        def get(self) -> str:
            return "get"

        def post(self) -> str:
            return "post"

    class Whole(MethodView):
        decorators = [limits.limit("1/hour")]  # noqa: RUF012 - as in Flask

        def get(self) -> str:
            return "get"

    app.add_url_rule("/item", view_func=Item.as_view("item"))
    app.add_url_rule("/whole", view_func=Whole.as_view("whole"))
    limits.init_app(app)

    assert statuses(app, "/item", "/item") == [200, 429]
    assert app.test_client().post("/item").status_code == 200
    assert statuses(app, "/whole", "/whole") == [200, 429]


def test_head_requests_that_are_not_exempt_are_limited(app: Flask, limits: RateLimits) -> None:
    class Item(MethodView):
        @limits.limit("1/hour", exempt_methods=())
        def get(self) -> str:
            return "get"

    app.add_url_rule("/item", view_func=Item.as_view("item"))
    limits.init_app(app)
    client = app.test_client()

    assert [client.head("/item").status_code for _ in range(2)] == [200, 429]


def test_an_address_in_place_of_the_application_is_an_error_that_names_the_argument() -> None:
    with pytest.raises(ConfigError, match=r"got 'ringfence://a'; give an address .* limiter="):
        RateLimits("ringfence://a", limit="5/minute")  # type: ignore[arg-type]


def test_a_second_extension_of_an_application_is_an_error(app: Flask, limits: RateLimits) -> None:
    limits.init_app(app)

    with pytest.raises(ConfigError, match="must have one RateLimits"):
        RateLimits(app, limit="1/hour")


def test_only_failed_logins_are_charged(app: Flask, limits: RateLimits) -> None:
    @app.get("/login/<password>")
    @limits.limit("2/hour", deduct_when=lambda response: response.status == 401)
    def login(password: str) -> tuple[str, int]:
        return "", 200 if password == "right" else 401

    limits.init_app(app)

    assert statuses(app, *["/login/right"] * 4) == [200] * 4
    assert statuses(app, "/login/a", "/login/b", "/login/right") == [401, 401, 429]


def test_a_failing_view_is_charged_as_status_500(app: Flask, limits: RateLimits) -> None:
    seen: list[int] = []

    @app.get("/")
    @limits.limit("9/hour", deduct_when=lambda response: bool(seen.append(response.status)))
    def broken() -> str:
        raise ZeroDivisionError

    limits.init_app(app)
    app.logger.disabled = True
    assert statuses(app, "/") == [500]
    app.testing = True
    with pytest.raises(ZeroDivisionError):
        statuses(app, "/")

    assert seen == [500, 500]


def test_a_slot_is_held_until_a_stream_ends(app: Flask, limiter: BlockingLimiter) -> None:
    limits = RateLimits(limiter=limiter)

    @app.get("/")
    @limits.limit(domain="api", keys={"running": lambda _: "flask"})
    def stream() -> Response:
        return Response(stream_with_context(iter("abc")))

    limits.init_app(app)
    client = app.test_client()
    with client.get("/") as running:
        assert client.get("/").status_code == 429
        assert running.data == b"abc"
    with client.get("/") as again:
        assert again.status_code == 200


def test_users_of_flask_login_have_separate_counters(app: Flask, limits: RateLimits) -> None:
    login = LoginManager(app)

    @login.request_loader
    def load(request: Any) -> UserMixin | None:
        name = request.headers.get("X-User")
        user = UserMixin()
        user.id = name
        return user if name else None

    app.get("/<name>")(limits.limit("1/hour", keys="user_or_ip+route")(lambda name: name))
    limits.init_app(app)

    for headers in ({"X-User": "ada"}, {"X-User": "bob"}, {}):
        assert statuses(app, "/a", "/b", headers=headers) == [200, 429]


def test_settings_come_from_the_configuration(app: Flask, limiter: BlockingLimiter) -> None:
    app.config |= {
        "RINGFENCE_URL": limiter,
        "RINGFENCE_LIMIT": "1/hour",
        "RINGFENCE_SCOPE": app.name,
        "RINGFENCE_TRUSTED_PROXIES": 1,
        "RINGFENCE_HEADERS": "x",
    }
    limits = RateLimits(limit="100/hour")
    limits.init_app(app)
    app.get("/")(lambda: str(limits.decision.remaining) if limits.decision else "")
    client = app.test_client()

    one, other = {"X-Forwarded-For": "1.1.1.1"}, {"X-Forwarded-For": "1.1.1.2"}
    first = client.get("/", headers=one)
    assert (first.text, first.headers["X-RateLimit-Remaining"]) == ("0", "0")
    assert client.get("/", headers=one).status_code == 429
    assert client.get("/", headers=other).status_code == 200


def test_one_extension_limits_several_applications_with_separate_settings(
    limits: RateLimits,
) -> None:
    on, off = Flask("on"), Flask("off")
    off.config["RINGFENCE_ENABLED"] = False
    shared_view = limits.limit("1/hour")(view_named("shared"))
    for app in (on, off):
        limits.init_app(app)
        app.get("/")(shared_view)

    assert statuses(off, "/", "/") == [200, 200]
    assert statuses(on, "/", "/") == [200, 429]


def test_the_error_for_a_misspelt_setting_lists_all_settings(
    app: Flask, limiter: BlockingLimiter
) -> None:
    app.config["RINGFENCE_LIMITS"] = "1/hour"
    with pytest.raises(
        ConfigError, match=r"'RINGFENCE_LIMITS' in.*mean 'RINGFENCE_LIMIT'.* RINGFENCE_LIMIT,"
    ):
        RateLimits(app, limiter)


def test_problems_of_configuration_and_arguments_are_reported_together(
    app: Flask, limiter: BlockingLimiter
) -> None:
    app.config |= {"RINGFENCE_DOMIAN": "api", "RINGFENCE_ULR": "x", "RINGFENCE_STRICT": "yes"}
    options: Any = {"limt": "5/m"}
    with pytest.raises(ConfigError) as caught:
        RateLimits(app, limiter, **options)

    for words in (
        "unknown setting 'RINGFENCE_DOMIAN' in the configuration; did you mean 'RINGFENCE_DOMAIN'?",
        "unknown setting 'RINGFENCE_ULR' in the configuration; did you mean 'RINGFENCE_URL'?",
        "strict must be True or False, got 'yes'",
        "unknown setting 'limt'; did you mean 'limit'?",
    ):
        assert words in str(caught.value)


def test_an_invalid_limit_is_reported_at_its_definition(limits: RateLimits) -> None:
    with pytest.raises(ConfigError, match="limit 'some/hour'"):
        limits.limit("some/hour")
    with pytest.raises(ConfigError, match="must name a limit"):
        limits.limit()


def test_limits_without_init_app_are_logged_once(
    app: Flask, limits: RateLimits, caplog: pytest.LogCaptureFixture
) -> None:
    others = [RateLimits() for _ in range(2)]
    app.add_url_rule("/", "view", limits.limit("1/hour")(view_named("view")))
    unrelated = Flask("unrelated")
    unrelated.add_url_rule("/", "view", view_named("view"))

    assert statuses(unrelated, "/") == [200]
    assert statuses(app, "/", "/") == [200, 200]

    [record] = caplog.records
    assert record.getMessage() == (
        f"limits without an effect: app={app.name}; call init_app(app) of their RateLimits"
    )
    del others


def test_a_limit_that_a_decorator_hides_is_logged(
    app: Flask, limits: RateLimits, caplog: pytest.LogCaptureFixture
) -> None:
    def hiding(inner: Callable[[], str]) -> Callable[[], str]:
        return lambda: inner() + "!"

    def preserving(inner: Callable[[], str]) -> Callable[[], str]:
        return wraps(inner)(lambda: inner() + "!")

    app.add_url_rule("/a", "a", hiding(limits.limit("1/hour")(view_named("hidden"))))
    app.add_url_rule("/b", "b", preserving(limits.limit("1/hour")(view_named("seen"))))
    limits.init_app(app)
    statuses(app, "/a", "/a", "/b")

    [record] = caplog.records
    assert "hidden" in record.getMessage()
    assert statuses(app, "/b") == [429]


def tenant_of(request: object) -> str:
    return "a"


def test_the_command_lists_the_limits_of_each_route(app: Flask, limiter: BlockingLimiter) -> None:
    limits = RateLimits(app, limiter, domain="api")
    app.get("/report")(limits.limit("5/minute", keys="user_or_ip")(view_named("report")))
    app.post("/open")(limits.exempt(view_named("open")))
    app.get("/healthz")(view_named("healthz"))
    own = {"tenant": lambda request: "a", "client": "ip"}
    app.get("/own")(limits.limit("5/minute", keys=["user", own])(view_named("own")))
    app.get("/read")(limits.limit("5/minute", keys=tenant_of)(view_named("read")))

    shown = app.test_cli_runner().invoke(args=["ringfence", "rules"]).output.splitlines()

    lines = {line.split()[1]: line for line in shown}
    assert lines["/report"].endswith("rules of domain api by client=ip; 5/minute by user_or_ip")
    assert lines["/open"].split(None, 2) == ["POST", "/open", "no limit"]
    assert lines["/healthz"].endswith("exempt")
    assert "5/minute by user and tenant=" in lines["/own"]
    assert lines["/own"].endswith("<lambda>()+client=ip")
    assert lines["/read"].endswith("5/minute by tenant_of()")
