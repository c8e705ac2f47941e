"""Named keys on requests of any kind."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence import ConfigError
from ringfence.http import ClientAddress, Keys
from ringfence.http.keys import KeySpec


@dataclass
class FakeRequest:
    method: str = "GET"
    path: str = "/users/7"
    peer: str | None = "203.0.113.9"
    route: str | None = "/users/{id}"
    user: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    native: object = None

    def header(self, name: str) -> str | None:
        return self.headers.get(name)


def read(spec: KeySpec, request: FakeRequest) -> list[dict[str, str]]:
    return Keys(spec, ClientAddress()).descriptors(request)


@pytest.mark.parametrize(
    ("spec", "descriptor"),
    [
        ("ip", {"ip": "203.0.113.9"}),
        ("user", {"user": "ada"}),
        ("user_or_ip", {"user_or_ip": "user:ada"}),
        ("route", {"route": "/users/{id}"}),
        ("path", {"path": "/users/7"}),
        ("method", {"method": "GET"}),
        ("host", {"host": "example.org"}),
        ("header:X-Api-Key", {"X-Api-Key": "secret"}),
        ("client=ip", {"client": "203.0.113.9"}),
        ("user+route", {"user": "ada", "route": "/users/{id}"}),
        ("key=header:x-api-key + method", {"key": "secret", "method": "GET"}),
    ],
)
def test_a_named_key_reads_its_part_of_the_request(spec: str, descriptor: dict[str, str]) -> None:
    request = FakeRequest(user="ada", headers={"host": "example.org", "x-api-key": "secret"})

    assert read(spec, request) == [descriptor]


def test_a_key_can_be_a_function_or_entries_of_names_and_functions() -> None:
    def tenant(request: object) -> str:
        return "acme"

    assert read(tenant, FakeRequest()) == [{"tenant": "acme"}]
    assert read({"tenant": tenant, "client": "ip"}, FakeRequest()) == [
        {"tenant": "acme", "client": "203.0.113.9"}
    ]


def test_each_key_is_a_descriptor_unless_the_request_lacks_a_part() -> None:
    keys = ["ip", "user+route", {"key": "header:x-api-key"}]

    assert read(keys, FakeRequest()) == [{"ip": "203.0.113.9"}]
    assert len(read(keys, FakeRequest(user="ada", headers={"x-api-key": "k"}))) == 3


@given(name=st.text())
def test_no_user_name_shares_a_key_with_an_address(name: str) -> None:
    assert read("user_or_ip", FakeRequest(user=name)) != read(
        "user_or_ip", FakeRequest(peer=name or None)
    )


def test_the_path_replaces_an_unknown_route() -> None:
    assert read("route", FakeRequest(route=None)) == [{"route": "/users/7"}]


def test_keys_of_ad_hoc_limits_consist_of_names_and_values() -> None:
    keys = Keys(["ip", "method+route"], ClientAddress())

    assert keys.parts(FakeRequest()) == [
        ("ip", "203.0.113.9"),
        ("method", "GET", "route", "/users/{id}"),
    ]


def test_a_callback_can_replace_the_user_of_the_request() -> None:
    keys = Keys("user", ClientAddress(), user=lambda request: request.header("x-user"))

    assert keys.descriptors(FakeRequest(user="ada", headers={"x-user": "bob"})) == [{"user": "bob"}]
    assert not keys.needs_user


@pytest.mark.parametrize(
    ("spec", "needed"),
    [("ip", False), ("ip+route", False), ("user", True), ({"who": "user_or_ip"}, True)],
)
def test_keys_report_whether_they_need_the_user(spec: KeySpec, needed: bool) -> None:
    assert Keys(spec, ClientAddress()).needs_user is needed


@pytest.mark.parametrize("spec", ["", "=ip", "header:", "ip+", [], {}, [[]], "usr", ["ip", 7]])
def test_an_unknown_key_is_refused(spec: KeySpec) -> None:
    with pytest.raises(ConfigError, match="key"):
        Keys(spec, ClientAddress())


def test_the_error_for_a_misspelt_key_suggests_the_likely_one() -> None:
    with pytest.raises(ConfigError, match="did you mean 'user_or_ip'"):
        Keys("user_of_ip", ClientAddress())
