"""Rate limits for Flask.

    limits = RateLimits(limiter="ringfence://...", limit="1000/hour")
    limits.init_app(app)

    @app.post("/login")
    @limits.limit("5/minute", deduct_when=lambda response: response.status == 401)
    def login(): ...

Decorators only mark a view; the limits are checked before the request is dispatched. So their place
among other decorators does not matter, and plain and async views are limited alike.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeVar, Unpack

import click
import werkzeug.exceptions
from flask import Blueprint, Flask, current_app, request
from flask import Request as FlaskRequest
from flask.cli import AppGroup
from werkzeug.wrappers import Response as WerkzeugResponse

from ringfence.client import Decision
from ringfence.errors import ConfigError
from ringfence.http.headers import retry_after_seconds
from ringfence.integrations import wsgi
from ringfence.integrations._core.policy import Policy
from ringfence.integrations._core.request_state import Refusal, RequestState
from ringfence.integrations._core.settings import (
    LimitSpec,
    Options,
    Response,
    Settings,
    ViewOptions,
)
from ringfence.integrations._core.settings_validation import in_place_of
from ringfence.integrations.flask.view_registry import Integration, Marked, ViewMark
from ringfence.integrations.wsgi import LimiterSpec, WsgiRequest

__all__ = ["LimiterUnavailable", "RateLimits", "TooManyRequests"]

_KEY = "ringfence"
_VISIT = "ringfence.flask"
"""Where an environ holds its visit: `g` may be shared by several requests of a test."""
_PREFIX = "RINGFENCE_"
_T = TypeVar("_T", bound=Callable[..., object] | Blueprint)


class TooManyRequests(werkzeug.exceptions.TooManyRequests):
    """A limit refused; `@app.errorhandler(429)` may answer in a way of its own.

    `retry_after` are whole seconds to wait, None when no wait helps; `refusal` has the decision.
    """

    def __init__(self, refusal: Refusal) -> None:
        wait = retry_after_seconds(refusal.refused.decision)
        super().__init__(refusal.refused.detail, _answer(refusal), retry_after=wait)
        self.refusal = refusal


class LimiterUnavailable(werkzeug.exceptions.ServiceUnavailable):
    """No node could decide, and the rule's `on_failure` denies: `@app.errorhandler(503)`."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.refused.detail, _answer(refusal))
        self.refusal = refusal


class RateLimits:
    """The extension. `limiter` and options may come from `app.config` instead: `RINGFENCE_URL`,
    `RINGFENCE_DOMAIN`, `RINGFENCE_TRUSTED_PROXIES` and so on; the configuration wins.
    """

    def __init__(
        self, app: Flask | None = None, limiter: LimiterSpec = None, **options: Unpack[Options]
    ) -> None:
        self._limiter = limiter
        self._options = options
        self._marked = Marked()
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Limit an application. Raises `ConfigError` for settings that make no sense."""
        if _KEY in app.extensions:
            raise ConfigError(
                f"application {app.name!r} has its RateLimits already; share the one there is"
            )
        configured = _configured(app)
        limiter = configured.pop("url", self._limiter)
        options: Any = {**self._options, **configured}
        limits = wsgi.RateLimits(limiter, **options)
        app.extensions[_KEY] = Integration(app, self._marked, limits)
        app.before_request(_before)
        app.after_request(_after)
        app.teardown_request(_teardown)
        if "ringfence" not in app.cli.commands:
            app.cli.add_command(_commands)

    def limit(self, limit: LimitSpec = None, **options: Unpack[ViewOptions]) -> Callable[[_T], _T]:
        """Limit a view, a method of a view class, or all of a blueprint: `limits.limit("9/s")(bp)`.

        Each has a budget of its own unless `scope` names one to share.
        """
        mark = ViewMark(limit, options)
        Policy(Settings()).for_view("", limit, options)  # Tells now what makes no sense.

        def decorate(target: _T) -> _T:
            marks = self._marked.of(target)
            marks.limits = (*marks.limits, mark)
            return target

        return decorate

    def exempt(self, target: _T) -> _T:
        """Exempt a view or a blueprint from what limits the application or the blueprint."""
        self._marked.of(target).is_exempt = True
        return target

    @property
    def decision(self) -> Decision | None:
        """All that was decided about the current request; None when nothing."""
        visit = _visit()
        return None if visit is None else visit.decision


class _Request(WsgiRequest):
    """Flask's request as key functions read it."""

    __slots__ = ("_native",)

    def __init__(self, native: FlaskRequest) -> None:
        super().__init__(native.environ)
        self._native = native

    @property
    def route(self) -> str | None:
        """The pattern of the URL rule."""
        rule = self.native.url_rule
        return "(no route)" if rule is None else rule.rule

    @property
    def user(self) -> str | None:
        """Flask-Login's user, where that is in use; else the server's."""
        if hasattr(current_app, "login_manager"):
            from flask_login import current_user

            return str(current_user.get_id()) if current_user.is_authenticated else None
        return super().user

    @property
    def native(self) -> FlaskRequest:
        """Flask's request; also after its context has ended, as at the end of a stream."""
        return self._native


def _face() -> Integration:
    face = current_app.extensions[_KEY]
    assert isinstance(face, Integration)
    return face


def _visit() -> RequestState | None:
    visit = request.environ.get(_VISIT)
    return visit if isinstance(visit, RequestState) else None


def _before() -> None:
    face = _face()
    face.look_for_lost_limits()
    visit = RequestState(_Request(request._get_current_object()))  # type: ignore[attr-defined]
    request.environ[_VISIT] = visit
    for policy in face.policies(request.endpoint, request.method):
        refusal = face.limits.admit(policy, visit)
        if refusal is not None:
            if refusal.refused.status == 503:
                raise LimiterUnavailable(refusal)
            raise TooManyRequests(refusal)


def _answer(refusal: Refusal) -> WerkzeugResponse:
    return WerkzeugResponse(refusal.body.content, refusal.refused.status, refusal.headers)


def _after(response: Any) -> Any:
    visit, limits = _visit(), _face().limits
    if visit is not None:
        code: int = response.status_code
        names = response.headers.keys()
        response.headers.extend(visit.headers(limits.policy.headers, code, names))
        if visit.spent:
            told = Response(code, {name.lower(): value for name, value in response.headers})
            if response.is_streamed:  # Its end is when the server has sent it all.
                spent = replace(visit, spent=list(visit.spent))
                visit.spent.clear()
                response.call_on_close(lambda: limits.settle(spent, told))
            else:
                limits.settle(visit, told)
    return response


def _teardown(error: BaseException | None) -> None:
    visit = _visit()
    if visit is not None and visit.spent:  # No answer was made, so `_after` did not run.
        _face().limits.settle(visit, Response(500, {}))


def _configured(app: Flask) -> dict[str, Any]:
    """Read the application's configuration. Raises `ConfigError` for names that mean nothing."""
    known = {field.name for field in fields(Settings)} | {"url"}
    found = {
        name.removeprefix(_PREFIX).lower(): value
        for name, value in app.config.items()
        if name.startswith(_PREFIX)
    }
    for name in found:
        if name not in known:
            settings = [f"{_PREFIX}{each.upper()}" for each in known]
            meant = in_place_of(f"{_PREFIX}{name.upper()}", settings)
            raise ConfigError(f"{_PREFIX}{name.upper()} in the configuration is not known; {meant}")
    return found


_commands = AppGroup("ringfence", help="Rate limits of this application.")


@_commands.command("rules")
def _show_rules() -> None:
    """Show which limits each route meets, the general first."""
    face = _face()
    for rule in sorted(current_app.url_map.iter_rules(), key=lambda rule: rule.rule):
        methods = sorted((rule.methods or set()) - {"HEAD", "OPTIONS"})
        for method in methods:
            told = [_in_words(each) for each in face.policies(rule.endpoint, method)]
            exempt = face.limits.policy.exempts(method, rule.rule)
            limits = "exempt" if exempt else "; ".join(told) or "no limit"
            click.echo(f"{method:7} {rule.rule:30} {limits}")


def _in_words(policy: Policy) -> str:
    settings = policy.settings
    if settings.domain is not None:
        what = f"rules of domain {settings.domain}"
    elif callable(settings.limit):
        what = f"as {getattr(settings.limit, '__qualname__', 'a function')} says"
    else:
        what = str(settings.limit)
    keys = settings.keys if isinstance(settings.keys, str) else "keys of its own"
    return f"{what} by {keys}"
