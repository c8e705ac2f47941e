"""Answers of a host's admin port to requests, with fake members."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from node.admin.http_messages import AdminRequest, AdminResponse
from node.supervisor import host_port
from node.supervisor.host_members import Host, HostMember
from node.supervisor.member_query import MemberResponse

Headers = Sequence[tuple[bytes, bytes]]
OK, NOT_READY = MemberResponse(200, [], b"# EOF\n"), MemberResponse(503, [], b"")


class HostPort:
    """Admin port of a host with the members `a`, `b` and `c`, which are all up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.members = [
            HostMember(index, name, f"{name}:7101", (name, 7181), is_up=True)
            for index, name in enumerate("abc")
        ]
        self.answers: dict[str, MemberResponse | None] = dict.fromkeys("abc", OK)
        self.queries: list[tuple[str, bytes, bytes]] = []
        """Name of the member, method and target of each query."""
        self.headers: list[Headers] = []
        self._monkeypatch = monkeypatch

    async def open(self) -> "HostPort":
        async def bind(
            respond: Any, on_refused: object, address: object, keys: object, name: str, *_: object
        ) -> Any:
            assert (address, keys, name) == (("127.0.0.1", 7180), None, "a")
            return respond

        self._monkeypatch.setattr(host_port, "bind_port", bind)
        self._monkeypatch.setattr(host_port, "ask_member", self._ask_member)
        host = Host("web", tuple(self.members))
        self._respond: Any = await host_port.open_page(host, ("127.0.0.1", 7180), None)
        return self

    async def _ask_member(
        self, address: tuple[str, int], method: bytes, target: bytes, headers: Headers
    ) -> MemberResponse | None:
        await trio.lowlevel.checkpoint()
        self.queries.append((address[0], method, target))
        self.headers.append(headers)
        return self.answers[address[0]]

    async def ask(
        self,
        path: str,
        method: str = "GET",
        *,
        query: bytes = b"",
        headers: Mapping[bytes, bytes] | None = None,
    ) -> AdminResponse:
        response: AdminResponse = await self._respond(
            AdminRequest(method, path, query, headers or {})
        )
        return response

    @property
    def asked(self) -> str:
        """The names of the members that were asked, sorted; they are then forgotten."""
        names = "".join(sorted(name for name, _, _ in self.queries))
        self.queries.clear()
        return names


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> HostPort:
    return HostPort(monkeypatch)


async def test_a_host_is_not_ready_when_a_member_is_not_or_does_not_answer(
    host: HostPort, autojump_clock: MockClock
) -> None:
    await host.open()
    found = []
    for answers in ({}, {"b": NOT_READY}, {"a": None, "c": NOT_READY}):
        host.answers = dict.fromkeys("abc", OK) | answers
        await trio.sleep(1)
        response = await host.ask("/readyz")
        found.append((response.status, json.loads(response.body).get("title")))

    assert found == [(200, None), (503, "not ready: b"), (503, "not ready: a, c")]


async def test_members_that_have_left_need_not_be_ready(
    host: HostPort, autojump_clock: MockClock
) -> None:
    host.members[0].has_left = host.members[2].has_left = True
    await host.open()

    response = await host.ask("/readyz")
    assert (response.status, json.loads(response.body)["members"]) == (200, ["b"])
    assert host.asked == "b"
    host.members[1].has_left = True
    response = await host.ask("/readyz")

    assert (response.status, json.loads(response.body)["title"]) == (503, "not ready: web")


async def test_members_that_leave_on_request_need_not_be_ready(
    host: HostPort, autojump_clock: MockClock
) -> None:
    await host.open()
    host.answers["b"] = NOT_READY
    host.members[1].is_leaving = True
    response = await host.ask("/readyz")
    assert (response.status, json.loads(response.body)["members"]) == (200, ["a", "c"])
    assert host.asked == "ac"
    host.members[0].is_leaving = host.members[2].is_leaving = True
    response = await host.ask("/readyz")

    assert (response.status, json.loads(response.body)["title"]) == (503, "not ready: web")


async def test_readiness_is_answered_from_a_cache_for_a_fifth_of_a_second(
    host: HostPort, autojump_clock: MockClock
) -> None:
    await host.open()
    began = trio.current_time()
    asked = []
    for at in (0, 0.19, 0.21, 0.39, 0.42):
        await trio.sleep_until(began + at)
        await host.ask("/readyz")
        asked.append(host.asked)
    assert asked == ["abc", "", "abc", "", "abc"]

    host.members[1].is_up = False  # A change of the processes ends the cache.
    response = await host.ask("/readyz")

    assert host.asked == "ac"
    assert json.loads(response.body)["title"] == "not ready: b"
    host.members[1].is_up = True
    response = await host.ask("/readyz")

    assert host.asked == "abc"
    assert response.status == 200


async def test_simultaneous_questions_about_readiness_share_one_query(
    host: HostPort, autojump_clock: MockClock
) -> None:
    await host.open()

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(host.ask, "/readyz")

    assert host.asked == "abc"


async def test_a_host_is_alive_without_asking_its_members(
    host: HostPort, autojump_clock: MockClock
) -> None:
    await host.open()

    response = await host.ask("/healthz", "HEAD")

    assert json.loads(response.body) == {"status": "alive", "members": ["a", "b", "c"]}
    assert host.asked == ""


@pytest.mark.parametrize(
    ("path", "status", "is_last"),
    [
        ("/healthz", 200, True),
        ("/readyz", 200, True),
        ("/v1/members", 200, False),
        ("/v1/members", 401, True),
        ("/v1/members", 403, True),
        ("/v1/members", 402, False),
        ("/v1/members", 404, False),
        ("/metrics", 401, True),
        ("/metrics", 403, True),
        ("/metrics", 404, False),
    ],
)
async def test_health_checks_and_refused_tokens_end_their_connection(
    host: HostPort, autojump_clock: MockClock, path: str, status: int, *, is_last: bool
) -> None:
    host.answers = dict.fromkeys("abc", MemberResponse(status, [], b""))
    await host.open()

    response = await host.ask(path)

    assert ((b"connection", b"close") in response.headers) is is_last
    is_own_answer = path == "/metrics" and status == 404
    assert response.status == (503 if is_own_answer else status)


@pytest.mark.parametrize("path", ["/v1/members", "/healthz", "/readyz"])
async def test_only_health_checks_are_not_limited_by_rate(
    host: HostPort, autojump_clock: MockClock, path: str
) -> None:
    await host.open()
    began = trio.current_time()

    for _ in range(2000):
        await host.ask(path)

    is_limited = trio.current_time() > began
    assert is_limited is (path == "/v1/members")


async def test_all_members_that_are_up_are_asked_to_leave(
    host: HostPort, autojump_clock: MockClock
) -> None:
    host.members[1].is_up = False
    host.answers = dict.fromkeys("abc", MemberResponse(202, [], b""))
    await host.open()

    response = await host.ask("/v1/leave", "POST")

    assert (response.status, json.loads(response.body)) == (
        202,
        {"status": "leaving", "members": ["a", "c"]},
    )
    assert sorted(host.queries) == [
        ("a", b"POST", b"/v1/leave"),
        ("c", b"POST", b"/v1/leave"),
    ]


async def test_the_refusal_of_one_member_to_leave_is_passed_back(
    host: HostPort, autojump_clock: MockClock
) -> None:
    refusal = MemberResponse(403, [(b"content-type", b"text/x")], b"no")
    host.answers = {"a": MemberResponse(202, [], b""), "b": None, "c": refusal}
    await host.open()

    response = await host.ask("/v1/leave", "POST")

    assert (response.status, response.body, response.content_type) == (403, b"no", "text/x")


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE"])
async def test_a_leave_request_by_another_method_goes_to_one_member(
    host: HostPort, autojump_clock: MockClock, method: str
) -> None:
    await host.open()

    await host.ask("/v1/leave", method)

    assert host.queries == [("a", method.encode(), b"/v1/leave")]


async def test_metrics_are_those_of_the_members_that_answer(
    host: HostPort, autojump_clock: MockClock
) -> None:
    page = b"# TYPE x gauge\nx 7\n# EOF\n"
    host.answers = {"a": MemberResponse(200, [], page), "b": None, "c": NOT_READY}
    await host.open()

    sent = {b"accept": b"text/plain", b"authorization": b"Bearer x", b"host": b"web"}
    response = await host.ask("/metrics", headers=sent)

    assert response.status == 200
    assert b'x{member="a"} 7' in response.body
    assert b'x{member="c"}' not in response.body
    for headers in host.headers:
        values = dict(headers)
        assert len(values) == len(headers)
        assert values.pop(b"accept").startswith(b"application/openmetrics-text")
        assert values == {b"authorization": b"Bearer x", b"host": b"web"}


async def test_a_query_goes_to_the_first_member_that_answers_with_some_of_its_headers(
    host: HostPort, autojump_clock: MockClock
) -> None:
    """Any status is an answer."""
    sent = {
        b"authorization": b"Bearer x",
        b"host": b"web",
        b"origin": b"http://web",
        b"accept": b"*/*",
        b"cookie": b"secret",
        b"connection": b"keep-alive",
    }
    answer = [
        (b"content-type", b"text/html"),
        (b"allow", b"GET"),
        (b"www-authenticate", b"Bearer"),
        (b"content-security-policy", b"none"),
        (b"referrer-policy", b"no-referrer"),
        (b"set-cookie", b"secret"),
        (b"content-length", b"2"),
    ]
    host.answers = {"a": None, "b": MemberResponse(404, answer, b"no"), "c": OK}
    await host.open()

    response = await host.ask("/v1/key", "HEAD", query=b"key=7", headers=sent)

    assert host.queries == [("a", b"GET", b"/v1/key?key=7"), ("b", b"GET", b"/v1/key?key=7")]
    kept = {name: sent[name] for name in (b"authorization", b"host", b"origin", b"accept")}
    assert dict(host.headers[1]) == kept
    assert (response.status, response.body, response.content_type) == (404, b"no", "text/html")
    assert list(response.headers) == answer[1:5]


async def test_members_without_an_admin_port_or_that_are_not_up_are_not_asked(
    host: HostPort, autojump_clock: MockClock
) -> None:
    host.members[0].operator_address = None
    host.members[1].is_up = False
    await host.open()

    await host.ask("/v1/members")

    assert host.asked == "c"


async def test_without_an_answering_member_a_query_is_refused(
    host: HostPort, autojump_clock: MockClock
) -> None:
    host.answers = dict.fromkeys("abc")
    await host.open()

    for path in ("/v1/members", "/metrics"):
        response = await host.ask(path)
        assert (response.status, json.loads(response.body)["title"]) == (503, "no member answers")
