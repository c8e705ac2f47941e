"""Costs that an application knows only while it responds, such as the tokens of a stream.

The application calls `set_cost` before its response ends. The setting `cost_after=reported_cost`
charges this cost then. Both work with the requests of all supported frameworks.
"""

from collections.abc import MutableMapping
from typing import Any

from ringfence.client.requests.descriptors import checked_cost
from ringfence.errors import ConfigError
from ringfence.http import Request
from ringfence.integrations._core.request_state import RequestState
from ringfence.integrations._core.settings import Response

__all__ = ["set_cost", "reported_cost"]

_STATE_KEY = "ringfence"
_COST = "ringfence.cost"


def set_cost(request: object, cost: int) -> None:
    """Report the actual cost of a request. The last call before the response ends counts.

    `request` is the framework's own object: a Starlette or FastAPI request or its ASGI scope,
    Flask's request (or its `environ`, for streams), a Django request, a WSGI environ. Raises
    `ConfigError` for anything else, and for a cost that is not a whole number of at least 0.
    """
    place = _place_of(request)
    state = place.get(_STATE_KEY)
    if isinstance(state, RequestState):  # Frameworks that copy their scope share the state.
        state.reported_cost = checked_cost(cost)
    else:
        place[_COST] = checked_cost(cost)


def reported_cost(request: Request, response: Response) -> int | None:
    """Return the cost that `set_cost` reported; None without a report, which keeps the original
    charge."""
    place = _place_of(request.native)
    state = place.get(_STATE_KEY)
    cost: int | None = state.reported_cost if isinstance(state, RequestState) else place.get(_COST)
    return cost


def _place_of(native: object) -> MutableMapping[str, Any]:
    """Return the mapping in which the web framework keeps the data of a request."""
    for found in (native, getattr(native, "scope", None), getattr(native, "environ", None)):
        if isinstance(found, MutableMapping):
            return found
    raise ConfigError(
        f"request must be a framework's request, an ASGI scope or a WSGI environ, got {native!r}; "
        "pass on what the view was called with"
    )
