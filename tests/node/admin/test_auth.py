"""Authorization at the admin port: tokens of programs and browsers, and pages of other sites."""

from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.admin.auth import authorize
from node.admin.http_messages import AdminRequest, HttpProblem
from node.config.access import Access
from ringfence.settings.token_file import Scope, TokenEntry
from ringfence.wire import token_digest

SECRET = bytes(range(16))
CLOSED = Access(tokens={"ops": TokenEntry(token_digest(SECRET), frozenset({Scope.OBSERVE}))})
OPEN = Access(is_open=True)


def basic(text: str) -> bytes:
    return b"Basic " + b64encode(text.encode())


def status(access: Access, method: str = "GET", **headers: bytes) -> int:
    named = {name.encode(): value for name, value in headers.items()}
    try:
        request = AdminRequest(method, "/", headers={b"host": b"127.0.0.1"} | named)
        authorize(access, Scope.OBSERVE, request)
    except HttpProblem as problem:
        return problem.status
    return 200


@pytest.mark.parametrize(
    "header",
    [
        b"Bearer ops." + SECRET.hex().encode(),
        b"bearer   ops." + SECRET.hex().encode(),
        basic(f"ops:{SECRET.hex()}"),
        basic(f"anything:ops.{SECRET.hex()}"),
    ],
)
def test_a_token_is_accepted_as_bearer_or_basic_credentials(header: bytes) -> None:
    assert status(CLOSED, authorization=header) == 200


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"Bearer",
        b"Bearer ops",
        b"Bearer ops." + bytes(16).hex().encode(),
        b"Bearer other." + SECRET.hex().encode(),
        b"Basic !!!!",
        b"Basic " + b64encode(b"\xff\xfe"),
        basic("ops"),
        b"Digest username=ops",
        b"\xff\xfe",
    ],
)
def test_other_credentials_get_401(header: bytes) -> None:
    assert status(CLOSED, authorization=header) == 401


@given(st.binary(max_size=80))
def test_no_header_value_raises_an_internal_error(header: bytes) -> None:
    assert status(CLOSED, authorization=header) == 401
    assert status(OPEN, host=header) in (200, 403)


@pytest.mark.parametrize(
    "host", [b"localhost", b"localhost:7180", b"127.0.0.1:7180", b"[::1]:7180"]
)
def test_without_keys_loopback_host_names_are_accepted(host: bytes) -> None:
    assert status(OPEN, host=host) == 200


@pytest.mark.parametrize(
    "host", [b"", b"evil.example.org", b"127.0.0.1.evil.org", b"10.0.0.1", b"["]
)
def test_without_keys_other_host_names_are_refused(host: bytes) -> None:
    assert status(OPEN, host=host) == 403


def test_a_write_from_a_page_of_another_site_is_refused() -> None:
    assert status(OPEN, "POST", origin=b"https://evil.example.org") == 403
    assert status(OPEN, "POST", origin=b"null") == 403
    assert status(OPEN, "POST", origin=b"http://127.0.0.1") == 200
    assert status(OPEN, "POST") == 200


@pytest.mark.parametrize("needed", [scope for scope in Scope if scope is not Scope.OBSERVE])
def test_a_token_without_the_needed_scope_gets_403(needed: Scope) -> None:
    headers = {b"host": b"127.0.0.1", b"authorization": basic(f"ops:{SECRET.hex()}")}

    with pytest.raises(HttpProblem, match=f"'ops' must have the scope '{needed.value}'") as caught:
        authorize(CLOSED, needed, AdminRequest("GET", "/", headers=headers))

    assert (caught.value.status, list(caught.value.headers)) == (403, [])


def test_a_browser_is_asked_for_a_token() -> None:
    request = AdminRequest("GET", "/", headers={b"host": b"ringfence.example.org"})

    with pytest.raises(HttpProblem) as caught:
        authorize(CLOSED, Scope.OBSERVE, request)

    [(name, value)] = caught.value.headers
    assert name == b"www-authenticate"
    assert value.startswith(b"Basic ")


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
def test_with_keys_only_writes_must_come_from_a_page_of_this_port(method: str) -> None:
    token = basic(f"ops:{SECRET.hex()}")

    def status_of(origin: bytes) -> int:
        return status(CLOSED, method, host=b"web:7180", origin=origin, authorization=token)

    assert status_of(b"https://web:7180") == 200
    is_read = method in ("GET", "HEAD")
    assert status_of(b"https://web:7181") == (200 if is_read else 403)
