"""Client addresses: headers of trusted proxies count, all other headers are ignored."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence import ConfigError
from ringfence.http import ClientAddress

PROXY, INNER, CLIENT = "10.0.0.7", "10.0.0.8", "203.0.113.9"
claims = st.lists(
    st.one_of(st.ip_addresses().map(str), st.sampled_from(["unknown", "", "x:y:z", "10.0.0.7"])),
    max_size=5,
).map(", ".join)


def headers_of(**headers: str) -> Callable[[str], str | None]:
    return {name.replace("_", "-"): value for name, value in headers.items()}.get


@given(claim=claims)
def test_without_trusted_proxies_the_peer_is_the_client(claim: str) -> None:
    assert ClientAddress().of(CLIENT, headers_of(x_forwarded_for=claim)) == CLIENT


@given(claim=claims)
def test_claimed_addresses_do_not_change_the_client_behind_listed_proxies(claim: str) -> None:
    chain = f"{claim}, {CLIENT}" if claim else CLIENT

    client = ClientAddress([PROXY, INNER]).of(
        INNER, headers_of(x_forwarded_for=f"{chain}, {PROXY}")
    )

    assert client == CLIENT


@given(claim=claims)
def test_claimed_addresses_do_not_change_the_client_behind_a_number_of_proxies(claim: str) -> None:
    chain = f"{claim}, {CLIENT}" if claim else CLIENT

    client = ClientAddress(2).of(INNER, headers_of(x_forwarded_for=f"{chain}, {PROXY}"))

    assert client == CLIENT


@given(claim=claims)
def test_address_headers_of_an_untrusted_peer_are_ignored(claim: str) -> None:
    client = ClientAddress(["10.0.0.0/8"]).of(CLIENT, headers_of(x_forwarded_for=claim))

    assert client == CLIENT


@given(claim=claims)
def test_only_the_configured_header_is_read(claim: str) -> None:
    addresses = ClientAddress(1, header="x-real-ip")

    client = addresses.of(
        PROXY, headers_of(x_real_ip=CLIENT, x_forwarded_for=claim, forwarded=claim)
    )

    assert client == CLIENT


@pytest.mark.parametrize(
    ("value", "client"),
    [
        ("for=203.0.113.9", CLIENT),
        ("For=203.0.113.9;proto=https;by=10.0.0.7", CLIENT),
        ('proto=http;for="203.0.113.9:4711"', CLIENT),
        ('for="[2001:db8:cafe::17]:4711"', "2001:db8:cafe::/64"),
        ('for=1.1.1.1, for="2.2.2.2;x,y", for=203.0.113.9', CLIENT),
        ('for=1.1.1.1;by="a\\",b", for=203.0.113.9', CLIENT),
        ("for=_hidden", "unknown"),
        ("for=unknown", "unknown"),
        ("proto=https", "unknown"),
        ('for=", for=203.0.113.9', CLIENT),
        ('for=";,\\, for="[2001:db8:cafe::17]:4711"', "2001:db8:cafe::/64"),
    ],
)
def test_the_forwarded_header_is_parsed_as_in_rfc_7239(value: str, client: str) -> None:
    assert (
        ClientAddress([PROXY], header="Forwarded").of(PROXY, headers_of(forwarded=value)) == client
    )


@pytest.mark.parametrize(
    ("entry", "client"),
    [
        ("203.0.113.9:4711", CLIENT),
        (" 203.0.113.9 ", CLIENT),
        ("::ffff:203.0.113.9", CLIENT),
        ("[2001:db8::17]:443", "2001:db8::/64"),
        ("2001:db8::17", "2001:db8::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("not-an-address", "unknown"),
        ("1" * 9000, "unknown"),
        (" , ", "unknown"),
        ("", "unknown"),
    ],
)
def test_addresses_are_read_with_ports_brackets_and_zones(entry: str, client: str) -> None:
    assert ClientAddress([PROXY]).of(PROXY, headers_of(x_forwarded_for=entry)) == client


def test_a_chain_shorter_than_configured_ends_at_its_first_entry() -> None:
    addresses = ClientAddress(3)

    assert addresses.of(INNER, headers_of(x_forwarded_for=f"{CLIENT}, {PROXY}")) == CLIENT
    assert addresses.of(INNER, headers_of()) == INNER


def test_the_client_is_the_first_entry_of_a_trusted_chain() -> None:
    client = ClientAddress(["10.0.0.0/8"]).of(
        INNER, headers_of(x_forwarded_for="10.9.9.9, 10.0.0.7")
    )

    assert client == "10.9.9.9"


def test_only_the_last_entries_of_an_endless_chain_are_read() -> None:
    endless = ", ".join([CLIENT, *["10.0.0.8"] * 9000])

    assert (
        ClientAddress(["10.0.0.0/8"]).of(PROXY, headers_of(x_forwarded_for=endless)) == "10.0.0.8"
    )


def test_a_proxy_matches_its_ipv4_mapped_ipv6_address() -> None:
    client = ClientAddress([PROXY]).of(f"::ffff:{PROXY}", headers_of(x_forwarded_for=CLIENT))

    assert client == CLIENT


@pytest.mark.parametrize("peer", [None, ""])
def test_a_proxy_on_a_unix_socket_can_be_trusted(peer: str | None) -> None:
    assert ClientAddress("unix").of(peer, headers_of(x_forwarded_for=CLIENT)) == CLIENT
    assert ClientAddress(1).of(peer, headers_of(x_forwarded_for=CLIENT)) == CLIENT


def test_clients_without_address_share_one_counter_and_one_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    addresses = ClientAddress()

    clients = [addresses.of(None, headers_of(x_forwarded_for=CLIENT)) for _ in range(3)]

    assert clients == ["unknown"] * 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "unix" in caplog.text


@pytest.mark.parametrize("trusted", [[PROXY], 1])
def test_a_proxy_without_client_address_is_logged_once_and_not_counted(
    trusted: list[str] | int, caplog: pytest.LogCaptureFixture
) -> None:
    addresses = ClientAddress(trusted)

    clients = [addresses.of(PROXY, headers_of(x_forwarded_for="rubbish")) for _ in range(3)]

    assert clients == ["unknown"] * 3
    assert addresses.of(PROXY, headers_of()) == PROXY, "the proxy itself sent the request"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "x-forwarded-for" in caplog.text


def test_ipv6_addresses_with_the_same_configured_prefix_are_one_client() -> None:
    narrow, wide = ClientAddress(ipv6_prefix=128), ClientAddress(ipv6_prefix=48)

    assert narrow.of("2001:db8:1:2::3", headers_of()) == "2001:db8:1:2::3/128"
    assert wide.of("2001:db8:1:2::3", headers_of()) == wide.of("2001:db8:1:ffff::1", headers_of())


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: ClientAddress(-1), "trusted_proxies must be .*, got -1"),
        (lambda: ClientAddress(True), "trusted_proxies must be .*, got True"),
        (lambda: ClientAddress(["10.0.0.0/8", "proxy.example"]), "'proxy.example'"),
        (lambda: ClientAddress(header="X-Client-IP"), "'X-Client-IP'"),
        (lambda: ClientAddress(ipv6_prefix=0), "ipv6_prefix must be from 1 to 128, got 0"),
    ],
)
def test_invalid_settings_are_reported(make: Callable[[], object], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        make()
