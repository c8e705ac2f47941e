"""The admin port of a host: metrics, health and leave requests of all members.

Members have their own admin ports on loopback, which check the caller's token. A request is
forwarded with its token and host name, and a rejection is passed back. Other requests go to the
first member that answers.
"""

import logging
from collections.abc import Sequence
from functools import partial
from math import inf

import trio

from node.admin.app import OPEN_METRICS
from node.admin.connection import AdminLimits
from node.admin.http_messages import AdminRequest, AdminResponse, HttpProblem, json_response
from node.admin.port import AdminPort, bind_port, request_throttle
from node.admin.throttle import Throttle
from node.config.access import KeyDir
from node.context.containment import Containment
from node.supervisor.host_members import Host, HostMember
from node.supervisor.member_query import MemberResponse, ask_member
from node.supervisor.merged_metrics import merged
from ringfence.transport.interface import Address

__all__ = ["open_page"]

logger = logging.getLogger("ringfence.node")

_READY_FRESH = 0.2
"""Seconds for which the readiness of the members is answered from a cache."""
_PASSED_ON = (b"authorization", b"host", b"origin", b"accept")
_PASSED_BACK = (b"www-authenticate", b"allow", b"content-security-policy", b"referrer-policy")


async def open_page(host: Host, address: Address, keys: KeyDir | None) -> AdminPort:
    """Bind the admin port of the host, which answers for all its members. Raises `ConfigError`."""
    containment = Containment(logger, trio.current_time)
    name = host.members[0].name  # The port presents the certificate of this member.
    limits = AdminLimits()
    page = _Page(host, request_throttle(limits))
    return await bind_port(page.respond, _log_refusal, address, keys, name, containment, limits)


def _log_refusal(cause: str) -> None:
    logger.debug("admin port of the host: refused: cause=%s", cause)


class _Page:
    """HTTP application of the host's admin port."""

    def __init__(self, host: Host, throttle: Throttle) -> None:
        self._host = host
        self._throttle = throttle
        self._asking = trio.Lock()
        self._told_at = -inf
        self._told_of: list[tuple[str, bool]] = []
        self._not_ready: list[str] = []

    async def respond(self, request: AdminRequest) -> AdminResponse:
        """Answer one HTTP request to the host's admin port."""
        is_health = request.path in ("/healthz", "/readyz")
        if not is_health:
            await self._throttle.turn()
        try:
            response = await self._answer(request)
        except HttpProblem as problem:
            response = problem.response()
        if is_health or response.status in (401, 403):
            response = response.as_last()  # The admin ports of members do the same.
        return response

    async def _answer(self, request: AdminRequest) -> AdminResponse:
        is_read = request.method in ("GET", "HEAD")
        match request.path:
            case "/healthz" if is_read:
                names = [member.name for member in self._host.members]
                return json_response({"status": "alive", "members": names})
            case "/readyz" if is_read:
                return await self._ready(request)
            case "/metrics" if is_read:
                return await self._metrics(request)
            case "/v1/leave" if request.method == "POST":
                return await self._leave(request)
            case _:
                return await self._from_one(request)

    async def _ready(self, request: AdminRequest) -> AdminResponse:
        """Return whether all members are ready, except those that were asked to leave."""
        staying = _staying(self._host.members)
        async with self._asking:  # Concurrent probes share one query of the members.
            known = [(member.name, member.is_up) for member in staying]
            if known != self._told_of or trio.current_time() - self._told_at >= _READY_FRESH:
                answers = await self._ask_all(request, staying)
                self._not_ready = [
                    member.name
                    for member, each in zip(staying, answers, strict=True)
                    if each is None or each.status != 200
                ]
                self._told_of, self._told_at = known, trio.current_time()
        staying = _staying(staying)  # A member may have begun to leave meanwhile.
        behind = [member.name for member in staying if member.name in self._not_ready]
        if behind or not staying:
            raise HttpProblem(
                503,
                f"not ready: {', '.join(behind) or self._host.name}",
                "the log says why; send checks to the other members meanwhile",
            )
        return json_response({"status": "ready", "members": [member.name for member in staying]})

    async def _metrics(self, request: AdminRequest) -> AdminResponse:
        members = self._host.members
        answers = await self._ask_all(request, members, accept=OPEN_METRICS.encode("ascii"))
        pages = {}
        for member, each in zip(members, answers, strict=True):
            if each is not None and each.status in (401, 403):
                return _passed_back(each)
            if each is not None and each.status == 200:
                pages[member.name] = each.body.decode()
        if not pages:
            raise HttpProblem(503, "no member answers", "ask again in a moment")
        accept = request.headers.get(b"accept", b"").decode("latin-1")
        write = partial(merged, pages, members, accept)
        return AdminResponse(*await trio.to_thread.run_sync(write, abandon_on_cancel=True))

    async def _leave(self, request: AdminRequest) -> AdminResponse:
        staying = [member for member in self._host.members if member.is_up]
        for each in await self._ask_all(request, staying):
            if each is not None and each.status != 202:
                return _passed_back(each)
        names = [member.name for member in staying]
        response = json_response({"status": "leaving", "members": names})
        return AdminResponse(response.body, status=202)

    async def _from_one(self, request: AdminRequest) -> AdminResponse:
        """Forward a query to the first member that answers, because any member can answer it."""
        for member in self._host.members:
            answers = await _ask(member, request)
            if answers is not None:
                return _passed_back(answers)
        raise HttpProblem(503, "no member answers", "ask again in a moment")

    async def _ask_all(
        self, request: AdminRequest, members: Sequence[HostMember], accept: bytes = b""
    ) -> list[MemberResponse | None]:
        answers: list[MemberResponse | None] = [None] * len(members)

        async def one(place: int, member: HostMember) -> None:
            answers[place] = await _ask(member, request, accept)

        async with trio.open_nursery() as nursery:
            for place, member in enumerate(members):
                nursery.start_soon(one, place, member)
        return answers


def _staying(members: Sequence[HostMember]) -> list[HostMember]:
    """Return the members that were not asked to leave."""
    return [member for member in members if not (member.is_leaving or member.has_left)]


async def _ask(
    member: HostMember, request: AdminRequest, accept: bytes = b""
) -> MemberResponse | None:
    if member.operator_address is None or not member.is_up:
        return None
    headers = [(name, value) for name, value in request.headers.items() if name in _PASSED_ON]
    if accept:
        headers = [pair for pair in headers if pair[0] != b"accept"] + [(b"accept", accept)]
    target = request.path.encode("latin-1")
    if request.query:
        target += b"?" + request.query
    method = b"GET" if request.method == "HEAD" else request.method.encode("ascii")
    return await ask_member(member.operator_address, method, target, headers)


def _passed_back(answers: MemberResponse) -> AdminResponse:
    headers = dict(answers.headers)
    kept = [(name, value) for name, value in answers.headers if name in _PASSED_BACK]
    content_type = headers.get(b"content-type", b"application/json").decode("latin-1")
    return AdminResponse(answers.body, content_type, answers.status, kept)
