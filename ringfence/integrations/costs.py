"""Costs that an application learns while it answers, such as the tokens of a stream.

The application calls `set_cost` at any time before its answer ends; the setting
`cost_after=told_cost` settles by it then. Works on the requests of every framework here.
"""

from collections.abc import MutableMapping
from typing import Any

from ringfence.client.requests.descriptors import checked_cost
from ringfence.errors import ConfigError
from ringfence.http import Request
from ringfence.integrations._core.request_state import RequestState
from ringfence.integrations._core.settings import Response

__all__ = ["set_cost", "told_cost"]

_VISIT = "ringfence"
_COST = "ringfence.cost"


def set_cost(request: object, cost: int) -> None:
    """Tell what a request has cost; the last call before its answer ends holds.

    `request` is the framework's own: a Starlette or FastAPI request or its ASGI scope, Flask's
    request (or its `environ`, for streams), a Django request, a WSGI environ. Raises `ConfigError`
    for anything else, and for a cost that is no whole number from 0.
    """
    place = _place_of(request)
    visit = place.get(_VISIT)
    if isinstance(visit, RequestState):  # Kept where frameworks that copy their scope share it.
        visit.told_cost = checked_cost(cost)
    else:
        place[_COST] = checked_cost(cost)


def told_cost(request: Request, response: Response) -> int | None:
    """Return what `set_cost` told of a request; None, which leaves what was held, when nothing."""
    place = _place_of(request.native)
    visit = place.get(_VISIT)
    cost: int | None = visit.told_cost if isinstance(visit, RequestState) else place.get(_COST)
    return cost


def _place_of(native: object) -> MutableMapping[str, Any]:
    """Find the mapping that a framework keeps of a request."""
    for found in (native, getattr(native, "scope", None), getattr(native, "environ", None)):
        if isinstance(found, MutableMapping):
            return found
    raise ConfigError(
        f"request must be a framework's request, an ASGI scope or a WSGI environ, got {native!r}; "
        "pass on what the view was called with"
    )
