"""Addresses and settings of the members of a host."""

import pytest

from node.config.settings import NodeSettings
from node.supervisor.member_plan import (
    member_settings,
    operator_address,
    operator_listeners,
    require_plan,
)
from ringfence.errors import ConfigError
from ringfence.transport.listeners import Listener


def host_settings(**settings: object) -> NodeSettings:
    return NodeSettings(**{"name": "web", "processes": 3, **settings})  # type: ignore[arg-type]


def test_each_member_has_the_next_port() -> None:
    settings = host_settings(listen="127.0.0.1:7101", http="127.0.0.1:7180")

    members = [member_settings(settings, index, []) for index in range(3)]

    assert [each.name for each in members] == ["web-0", "web-1", "web-2"]
    assert [each.listen for each in members] == [f"127.0.0.1:{port}" for port in (7101, 7102, 7103)]
    assert [each.http for each in members] == [f"127.0.0.1:{port}" for port in (7181, 7182, 7183)]
    assert {each.processes for each in members} == {1}


def test_members_advertise_the_address_of_the_host_and_serve_admin_ports_on_loopback() -> None:
    settings = host_settings(listen="[::]:7101", advertise="[2001:db8::1]:9000", http="[::]:7180")

    second = member_settings(settings, 1, [])

    assert (second.listen, second.advertise) == ("[::]:7102", "[2001:db8::1]:9001")
    assert second.http == "127.0.0.1:7182"
    assert operator_address(settings, 1) == ("127.0.0.1", 7182)


def test_a_member_joins_the_listed_local_members_first() -> None:
    settings = host_settings(join=["10.0.0.2:7101"], advertise="10.0.0.1:7101")

    assert member_settings(settings, 1, ["10.0.0.1:7101"]).join == [
        "10.0.0.1:7101",
        "10.0.0.2:7101",
    ]


@pytest.mark.parametrize(("configured", "zone"), [("", "web"), ("north", "north")])
def test_the_name_of_the_host_is_the_zone_unless_a_zone_is_set(configured: str, zone: str) -> None:
    members = [member_settings(host_settings(zone=configured), index, []) for index in range(3)]

    assert {each.zone for each in members} == {zone}


def test_without_an_admin_port_of_the_host_members_have_no_admin_port() -> None:
    assert operator_address(host_settings(), 0) is None
    assert member_settings(host_settings(), 0, []).http == ""


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"listen": "127.0.0.1:65534"}, "listen: 3 processes from port 65534"),
        ({"advertise": "10.0.0.1:65534"}, "advertise: 3 processes from port 65534"),
        ({"http": "127.0.0.1:65533"}, "http: 3 processes take the ports after 65533"),
        ({"http": "127.0.0.1:0"}, "choose a port"),
    ],
)
def test_a_host_with_too_few_ports_is_rejected(settings: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        require_plan(host_settings(**settings))


def test_the_last_valid_ports_are_accepted() -> None:
    require_plan(host_settings(listen="127.0.0.1:65533", http="127.0.0.1:65532"))


@pytest.mark.parametrize(
    ("settings", "ports"),
    [
        ({"http": "", "processes": 3}, []),
        ({"http": "0.0.0.0:7180", "processes": 1}, [("http", ("0.0.0.0", 7180), 1)]),
        (
            {"http": "0.0.0.0:7180", "processes": 2},
            [("http", ("0.0.0.0", 7180), 1), ("http of the members", ("127.0.0.1", 7181), 2)],
        ),
        (
            {"http": "[::]:7180", "processes": 3},
            [("http", ("::", 7180), 1), ("http of the members", ("127.0.0.1", 7181), 3)],
        ),
    ],
)
def test_the_admin_ports_of_a_host_are_its_own_and_those_of_its_members(
    settings: dict[str, object], ports: list[tuple[str, tuple[str, int], int]]
) -> None:
    found = operator_listeners(host_settings(**settings))

    assert found == [Listener(*each) for each in ports]
