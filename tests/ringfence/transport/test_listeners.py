import pytest

from ringfence.errors import ConfigError
from ringfence.transport.listeners import Listener, require_distinct


@pytest.mark.parametrize(
    ("one", "other", "clash"),
    [
        (("127.0.0.1", 7180), ("127.0.0.1", 7180), True),
        (("localhost", 7180), ("127.0.0.1", 7180), True),
        (("0.0.0.0", 7180), ("10.0.0.1", 7180), True),
        (("10.0.0.1", 7180), ("::", 7180), True),
        (("10.0.0.1", 7180), ("10.0.0.2", 7180), False),
        (("127.0.0.1", 7180), ("127.0.0.1", 7181), False),
        (("127.0.0.1", 0), ("127.0.0.1", 0), False),
    ],
)
def test_two_listeners_clash_on_one_port_of_one_host(
    one: tuple[str, int], other: tuple[str, int], clash: bool
) -> None:
    listeners = [Listener("http", one), Listener("listen", other)]

    assert listeners[0].clashes_with(listeners[1]) is clash
    assert listeners[1].clashes_with(listeners[0]) is clash
    if clash:
        with pytest.raises(ConfigError, match="http and listen must have different ports"):
            require_distinct(listeners)
    else:
        require_distinct(listeners)


@pytest.mark.parametrize(
    ("port", "clash"), [(7189, False), (7190, True), (7194, True), (7195, False)]
)
def test_a_range_of_ports_clashes_with_each_port_in_it(port: int, clash: bool) -> None:
    row = Listener("http", ("127.0.0.1", 7190), 5)

    assert row.clashes_with(Listener("grpc", ("127.0.0.1", port))) is clash
    assert str(row) == "http = 127.0.0.1:7190 to 7194"
