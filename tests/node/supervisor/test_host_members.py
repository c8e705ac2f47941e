"""Members of a host, before the supervisor starts them."""

from node.config.settings import NodeSettings
from node.supervisor.host_members import Host


def test_a_new_host_has_its_members_in_order_and_none_of_them_runs() -> None:
    host = Host.of(
        NodeSettings(name="web", advertise="10.0.0.1:9000", http="127.0.0.1:7180", processes=2)
    )

    assert [(each.index, each.name, each.address) for each in host.members] == [
        (0, "web-0", "10.0.0.1:9000"),
        (1, "web-1", "10.0.0.1:9001"),
    ]
    assert [each.operator_address for each in host.members] == [
        ("127.0.0.1", 7181),
        ("127.0.0.1", 7182),
    ]
    assert not any(each.is_up or each.has_left or each.began.is_set() for each in host.members)
