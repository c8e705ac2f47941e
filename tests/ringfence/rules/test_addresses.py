from ipaddress import IPv6Address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringfence.rules import group_address


@given(
    network=st.integers(0, 2**64 - 1).filter(lambda high: high != 0),
    first=st.integers(0, 2**64 - 1),
    second=st.integers(0, 2**64 - 1),
)
def test_all_addresses_of_one_ipv6_subscriber_are_one_client(network, first, second):
    one, other = (str(IPv6Address(network << 64 | host)) for host in (first, second))

    assert group_address(one) == group_address(other)
    assert IPv6Address(one) in ip_network(group_address(one))


@given(first=st.ip_addresses(v=4), second=st.ip_addresses(v=4))
def test_every_ipv4_address_is_a_separate_client(first, second):
    same = group_address(str(first)) == group_address(str(second))

    assert same == (first == second)


@pytest.mark.parametrize(
    ("address", "client"),
    [
        ("2001:db8::17", "2001:db8::/64"),
        ("2001:db8:0:1::17", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("203.0.113.7", "203.0.113.7"),
        ("alice", "alice"),
        ("", ""),
    ],
)
def test_ipv6_addresses_are_grouped_and_other_values_are_unchanged(address, client):
    assert group_address(address) == client


def test_a_longer_prefix_distinguishes_more_clients():
    assert group_address("2001:db8::17", 128) == "2001:db8::17/128"
    assert group_address("2001:db8::17", 48) == "2001:db8::/48"


@pytest.mark.parametrize("prefix", [0, -1, 129])
def test_a_prefix_outside_1_to_128_is_rejected(prefix):
    with pytest.raises(ValueError, match="must be 1 to 128"):
        group_address("2001:db8::17", prefix)
