"""Which member of a host listens where."""

import pytest

from node.config.settings import NodeSettings
from node.supervisor.member_plan import member_settings, operator_address, require_plan
from ringfence.errors import ConfigError


def several(**settings: object) -> NodeSettings:
    return NodeSettings(**{"name": "web", "processes": 3, **settings})  # type: ignore[arg-type]


def test_members_take_the_ports_that_follow() -> None:
    settings = several(listen="127.0.0.1:7101", http="127.0.0.1:7180")

    found = [member_settings(settings, index, []) for index in range(3)]

    assert [each.name for each in found] == ["web-0", "web-1", "web-2"]
    assert [each.listen for each in found] == [f"127.0.0.1:{port}" for port in (7101, 7102, 7103)]
    assert [each.http for each in found] == [f"127.0.0.1:{port}" for port in (7181, 7182, 7183)]
    assert {each.processes for each in found} == {1}


def test_members_are_reached_where_the_host_is_and_watched_on_loopback_only() -> None:
    settings = several(listen="[::]:7101", advertise="[2001:db8::1]:9000", http="[::]:7180")

    second = member_settings(settings, 1, [])

    assert (second.listen, second.advertise) == ("[::]:7102", "[2001:db8::1]:9001")
    assert second.http == "127.0.0.1:7182"
    assert operator_address(settings, 1) == ("127.0.0.1", 7182)


def test_a_member_is_what_is_listed_and_joins_those_beside_it_first() -> None:
    settings = several(join=["10.0.0.2:7101"], advertise="10.0.0.1:7101")

    assert member_settings(settings, 1, ["10.0.0.1:7101"]).join == [
        "10.0.0.1:7101",
        "10.0.0.2:7101",
    ]


@pytest.mark.parametrize(("own", "zone"), [("", "web"), ("north", "north")])
def test_a_host_is_a_zone_unless_a_zone_is_set(own: str, zone: str) -> None:
    members = [member_settings(several(zone=own), index, []) for index in range(3)]

    assert {each.zone for each in members} == {zone}


def test_without_an_operators_port_members_have_none() -> None:
    assert operator_address(several(), 0) is None
    assert member_settings(several(), 0, []).http == ""


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"listen": "127.0.0.1:65534"}, "listen: 3 processes from port 65534"),
        ({"advertise": "10.0.0.1:65534"}, "advertise: 3 processes from port 65534"),
        ({"http": "127.0.0.1:65533"}, "http: 3 processes take the ports after 65533"),
        ({"http": "127.0.0.1:0"}, "name a port"),
    ],
)
def test_a_host_without_so_many_ports_is_refused(settings: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        require_plan(several(**settings))


def test_the_last_ports_there_are_will_do() -> None:
    require_plan(several(listen="127.0.0.1:65533", http="127.0.0.1:65532"))
