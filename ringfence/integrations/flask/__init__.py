"""Rate limits for Flask applications, views and blueprints.

    limits = RateLimits(limiter="ringfence://...", limit="1000/hour")
    limits.init_app(app)

    @app.post("/login")
    @limits.limit("5/minute", deduct_when=lambda response: response.status == 401)
    def login(): ...

Decorators only mark a view; limits are checked before the request is dispatched. So the order of
decorators does not matter, and async views work as well.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, Unpack

import click
import werkzeug.exceptions
from flask import Blueprint, Flask, current_app, request, request_started
from flask import Request as FlaskRequest
from flask.cli import AppGroup
from msgspec.structs import replace
from werkzeug.wrappers import Response as WerkzeugResponse

from ringfence.client.decision import Decision
from ringfence.errors import ConfigError
from ringfence.http.headers import retry_after_seconds
from ringfence.integrations import wsgi
from ringfence.integrations._core.effects import Refusal
from ringfence.integrations._core.policy import Policy
from ringfence.integrations._core.request_state import RequestState
from ringfence.integrations._core.settings import (
    LimitSpec,
    Options,
    Response,
    Settings,
    ViewOptions,
)
from ringfence.integrations._core.settings_validation import raise_problems, setting_problems
from ringfence.integrations.flask.view_registry import (
    Integration,
    MarkedTargets,
    ViewMark,
    has_marks,
    logger,
)
from ringfence.integrations.wsgi import LimiterSpec, WsgiRequest

__all__ = ["LimiterUnavailable", "RateLimits", "TooManyRequests"]

_KEY = "ringfence"
_WARNED = "ringfence.warned"
"""Key of the `RateLimits` that has logged the warning: others may exist without an application."""
_STATE_KEY = "ringfence.flask"
"""Key of the request state in an environ. Several requests of a test may share `g`."""
_PREFIX = "RINGFENCE_"
_T = TypeVar("_T", bound=Callable[..., object] | Blueprint)


class TooManyRequests(werkzeug.exceptions.TooManyRequests):
    """Exception for a request that a limit denied; `@app.errorhandler(429)` may send another
    response.

    `retry_after` is the wait in whole seconds, None when the request will never be allowed.
    `refusal` has the decision.
    """

    def __init__(self, refusal: Refusal) -> None:
        wait = retry_after_seconds(refusal.refused.decision)
        super().__init__(refusal.refused.detail, _answer(refusal), retry_after=wait)
        self.refusal = refusal


class LimiterUnavailable(werkzeug.exceptions.ServiceUnavailable):
    """Exception for a request that is refused because no node could decide and the rule has
    `on_failure: deny`.

    `@app.errorhandler(503)` may send another response.
    """

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.refused.detail, _answer(refusal))
        self.refusal = refusal


class RateLimits:
    """Flask extension that limits requests.

    `app.config` overrides the limiter and options: `RINGFENCE_URL`, `RINGFENCE_DOMAIN`,
    `RINGFENCE_TRUSTED_PROXIES` and so on.
    """

    def __init__(
        self, app: Flask | None = None, limiter: LimiterSpec = None, **options: Unpack[Options]
    ) -> None:
        self._limiter = limiter
        self._options = options
        self._marked = MarkedTargets()
        request_started.connect(self._warn_if_not_installed)
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Apply the limits to a Flask application. Raises `ConfigError` for invalid settings."""
        if not isinstance(app, Flask):
            raise ConfigError(
                f"app must be a Flask application, got {app!r}; give an address or a limiter as "
                "limiter=..."
            )
        if _KEY in app.extensions:
            raise ConfigError(
                f"application {app.name!r} must have one RateLimits, got a second; share the first"
            )
        fields = Settings.__dataclass_fields__
        known = {f"{_PREFIX}{name.upper()}": name for name in ("url", *fields)}
        given = {name: value for name, value in app.config.items() if name.startswith(_PREFIX)}
        problems = setting_problems(given, known, " in the configuration")
        raise_problems(problems + setting_problems(self._options, {name: name for name in fields}))
        configured = {known[name]: value for name, value in given.items()}
        limiter = configured.pop("url", self._limiter)
        options: Any = {**self._options, **configured}
        limits = wsgi.RateLimits(limiter, **options)
        app.extensions[_KEY] = Integration(app, self._marked, limits)
        app.before_request(_before)
        app.after_request(_after)
        app.teardown_request(_teardown)
        if "ringfence" not in app.cli.commands:
            app.cli.add_command(_commands)

    def _warn_if_not_installed(self, app: Flask, **_: object) -> None:
        """Log a warning at the first request of an application whose views have limits without an
        effect."""
        if has_marks(app):
            request_started.disconnect(self._warn_if_not_installed)
            is_first = app.extensions.setdefault(_WARNED, self) is self
            if _KEY not in app.extensions and is_first:
                logger.warning(
                    "limits without an effect: app=%s; call init_app(app) of their RateLimits",
                    app.name,
                )

    def limit(self, limit: LimitSpec = None, **options: Unpack[ViewOptions]) -> Callable[[_T], _T]:
        """Limit a view, a method of a view class, or a whole blueprint: `limits.limit("9/s")(bp)`.

        Each has its own counters unless `scope` names shared ones.
        """
        mark = ViewMark(limit, options)
        Policy(Settings()).for_view("", limit, options)  # Raises for invalid settings now.

        def decorate(target: _T) -> _T:
            marks = self._marked.of(target)
            marks.limits = (*marks.limits, mark)
            return target

        return decorate

    def exempt(self, target: _T) -> _T:
        """Exempt a view or blueprint from the limits of the application and of blueprints."""
        self._marked.of(target).is_exempt = True
        return target

    @property
    def decision(self) -> Decision | None:
        """Combined decision about the current request so far; None when there is none."""
        state = _current_state()
        return None if state is None else state.decision


class _Request(WsgiRequest):
    """Flask request in the form from which the keys of counters are read."""

    __slots__ = ("_native",)

    def __init__(self, native: FlaskRequest) -> None:
        super().__init__(native.environ)
        self._native = native

    @property
    def route(self) -> str | None:
        """Pattern of the matched URL rule."""
        rule = self.native.url_rule
        return "(no route)" if rule is None else rule.rule

    @property
    def user(self) -> str | None:
        """User of Flask-Login if the application uses it; otherwise the user that the server
        authenticated."""
        if hasattr(current_app, "login_manager"):
            from flask_login import current_user

            return str(current_user.get_id()) if current_user.is_authenticated else None
        return super().user

    @property
    def native(self) -> FlaskRequest:
        """Flask's request object, also after its context has ended."""
        return self._native


def _integration() -> Integration:
    integration = current_app.extensions[_KEY]
    assert isinstance(integration, Integration)
    return integration


def _current_state() -> RequestState | None:
    state = request.environ.get(_STATE_KEY)
    return state if isinstance(state, RequestState) else None


def _before() -> None:
    integration = _integration()
    integration.warn_of_lost_limits()
    state = RequestState(_Request(request._get_current_object()))  # type: ignore[attr-defined]
    request.environ[_STATE_KEY] = state
    for policy in integration.policies(request.endpoint, request.method):
        refusal = integration.limits.admit(policy, state)
        if refusal is not None:
            if refusal.refused.status == 503:
                raise LimiterUnavailable(refusal)
            raise TooManyRequests(refusal)


def _answer(refusal: Refusal) -> WerkzeugResponse:
    return WerkzeugResponse(refusal.body.content, refusal.refused.status, refusal.headers)


def _after(response: Any) -> Any:
    state, limits = _current_state(), _integration().limits
    if state is not None:
        code: int = response.status_code
        names = response.headers.keys()
        response.headers.extend(state.headers(limits.policy.headers, code, names))
        if state.spent:
            core_response = Response(
                code, {name.lower(): value for name, value in response.headers}
            )
            if response.is_streamed:  # A stream ends when the server has sent it.
                spent = replace(state, spent=list(state.spent))
                state.spent.clear()
                response.call_on_close(lambda: limits.settle(spent, core_response))
            else:
                limits.settle(state, core_response)
    return response


def _teardown(error: BaseException | None) -> None:
    state = _current_state()
    if state is not None and state.spent:  # There is no response, so `_after` did not run.
        _integration().limits.settle(state, Response(500, {}))


_commands = AppGroup("ringfence", help="Rate limits of this application.")


@_commands.command("rules")
def _show_rules() -> None:
    """Print the limits of each route, the limits of the application first."""
    integration = _integration()
    for rule in sorted(current_app.url_map.iter_rules(), key=lambda rule: rule.rule):
        methods = sorted((rule.methods or set()) - {"HEAD", "OPTIONS"})
        for method in methods:
            descriptions = [_describe(each) for each in integration.policies(rule.endpoint, method)]
            exempt = integration.limits.policy.exempts(method, rule.rule)
            limits = "exempt" if exempt else "; ".join(descriptions) or "no limit"
            click.echo(f"{method:7} {rule.rule:30} {limits}")


def _describe(policy: Policy) -> str:
    settings = policy.settings
    if settings.domain is not None:
        what = f"rules of domain {settings.domain}"
    elif callable(settings.limit):
        what = f"as {getattr(settings.limit, '__qualname__', 'a function')} says"
    else:
        what = str(settings.limit)
    return f"{what} by {_describe_keys(settings.keys)}"


def _describe_keys(keys: object) -> str:
    """Format the setting `keys` as one would write it, with the names of functions."""
    if isinstance(keys, str):
        return keys
    if isinstance(keys, Mapping):
        return "+".join([f"{entry}={_describe_keys(name)}" for entry, name in keys.items()])
    if isinstance(keys, Iterable):
        return " and ".join([_describe_keys(each) for each in keys])
    return f"{getattr(keys, '__qualname__', 'a function')}()"
