"""Limits on connections: which are accepted, and which are closed for a new one."""

import pytest
from msgspec.structs import replace

from node.requests.sessions.connection_places import ConnectionPlaces, Limits, group_of

LIMITS = Limits(clients=4, per_address=3, per_token=2, strangers=3, strangers_per_address=2)
A, B, C = "192.0.2.1", "192.0.2.2", "192.0.2.3"


def test_three_quarters_are_for_clients_and_an_eighth_for_members_alone() -> None:
    limits = Limits.of(4096, 1024, 2048)

    assert (limits.clients, limits.strangers, limits.strangers_per_address) == (3072, 256, 64)
    assert Limits.of(16, 9, 9) == Limits(12, 9, 9, 2, 1)
    assert Limits.of(8, 9, 9) == Limits(6, 9, 9, 1, 1)
    assert Limits.of(56, 9, 9) == Limits(42, 9, 9, 7, 3)


def test_too_many_unauthenticated_connections_close_the_oldest() -> None:
    places: ConnectionPlaces[int] = ConnectionPlaces(LIMITS)

    assert [places.arrived(each, host) for each, host in enumerate((A, B, C))] == [None] * 3
    assert places.arrived(3, "192.0.2.4") == 0
    places.left(0)
    assert places.arrived(4, "192.0.2.5") == 1


def test_too_many_unauthenticated_connections_of_an_address_close_its_oldest() -> None:
    places: ConnectionPlaces[int] = ConnectionPlaces(LIMITS)

    assert [places.arrived(each, host) for each, host in enumerate((B, A, A))] == [None] * 3
    assert places.arrived(3, A) == 1


def test_authenticated_connections_do_not_count_as_unauthenticated() -> None:
    places: ConnectionPlaces[int] = ConnectionPlaces(LIMITS)
    for each in range(0, 20, 2):
        assert places.arrived(each, A) is None
        places.take_member(each)
        assert places.arrived(each + 1, A) is None
        places.take_client(each + 1, "app")


@pytest.mark.parametrize(
    ("callers", "reason"),
    [
        ([(A, "a"), (B, "b"), (A, "c"), (B, "d"), (C, "e")], "of clients must be at most 4"),
        ([(A, "a"), (A, "b"), (A, "c"), (A, "d")], f"connections from {A} must be at most 3"),
        ([(A, "a"), (B, "a"), (C, "a")], "connections with the token 'a' must be at most 2"),
    ],
)
def test_clients_are_bounded_in_total_by_address_and_by_token(
    callers: list[tuple[str, str]], reason: str
) -> None:
    places: ConnectionPlaces[int] = ConnectionPlaces(LIMITS)
    answers = []
    for each, (host, token) in enumerate(callers):
        places.arrived(each, host)
        answers.append(places.take_client(each, token))

    assert answers[:-1] == [None] * (len(callers) - 1)
    assert answers[-1] is not None
    assert reason in answers[-1]
    places.left(0)
    places.arrived(99, callers[-1][0])
    assert places.take_client(99, callers[-1][1]) is None, "a place that was left is free again"


def test_a_closed_connection_frees_one_place_of_its_address_and_token() -> None:
    def taken(host: str, tokens: list[str]) -> list[bool]:
        places: ConnectionPlaces[int] = ConnectionPlaces(replace(LIMITS, clients=9, per_token=3))
        answers = []
        for each, token in enumerate(tokens):
            places.arrived(each, host if len({*tokens}) > 1 else f"192.0.2.{each}")
            answers.append(places.take_client(each, token) is None)
            if each == 2:
                places.left(0)
        return answers

    assert taken(A, ["a", "b", "c", "d", "e"]) == [True, True, True, True, False]
    assert taken(A, ["a"] * 5) == [True, True, True, True, False]


def test_an_ipv6_subscriber_is_counted_as_one() -> None:
    assert group_of("2001:db8::1") == group_of("2001:db8::ffff") == "2001:db8::/64"
    assert group_of("fe80::1%eth0") == "fe80::/64"
    assert group_of(A) == A
    assert group_of("no:address") == "no:address"
