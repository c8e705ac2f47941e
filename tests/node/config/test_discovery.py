"""Seeds from settings and from Kubernetes."""

import pytest
import trio
from trio.testing import MockClock

from node.config.discovery import Discovery, from_environment, parse_seed
from ringfence.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "kind", "name", "port"),
    [
        ("10.0.0.1:7101", "address", "10.0.0.1", 7101),
        ("[::1]:7101", "address", "::1", 7101),
        ("node.example:7101", "address", "node.example", 7101),
        ("dns:ringfence.prod.svc:7101", "dns", "ringfence.prod.svc", 7101),
        ("srv:_ringfence._udp.example", "srv", "_ringfence._udp.example", 0),
    ],
)
def test_a_seed_is_an_address_a_name_or_a_service(
    text: str, kind: str, name: str, port: int
) -> None:
    seed = parse_seed(text)

    assert (seed.kind, seed.name, seed.port) == (kind, name, port)


@pytest.mark.parametrize("text", ["", "host:99999", "srv:", "srv:name:7101"])
def test_the_error_for_an_invalid_seed_shows_the_valid_forms(text: str) -> None:
    with pytest.raises(ConfigError, match=r"write HOST:PORT, dns:NAME:PORT or srv:"):
        parse_seed(text)


def test_several_addresses_in_one_value_are_rejected_with_the_remedy() -> None:
    with pytest.raises(ConfigError, match="one address in each value, got 'a:1,b:1'; repeat --joi"):
        parse_seed("a:1,b:1")


async def test_each_address_is_returned_once_in_order() -> None:
    found = await Discovery(["127.0.0.1:7101", "localhost:7102", "127.0.0.1:7101"]).resolve()

    assert found[0] == ("127.0.0.1", 7101)
    assert ("127.0.0.1", 7102) in found
    assert len(found) == len(set(found))


async def test_the_ipv6_loopback_address_of_a_name_is_returned_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def getaddrinfo(host: str, port: int, **kind: int) -> list[object]:
        return [(0, 0, 0, "", (address, port)) for address in ("::1", "127.0.0.1", "::1")]

    monkeypatch.setattr(trio.socket, "getaddrinfo", getaddrinfo)

    found = await Discovery(["localhost:7101"]).resolve()

    assert found == [("127.0.0.1", 7101), ("::1", 7101)]


@pytest.mark.parametrize(
    ("delays", "seconds", "found", "silent"),
    [
        ([1], 1, [1], []),
        ([4.9], 4.9, [4.9], []),
        ([5.1], 5, [], [5.1]),
        ([5.1, 100], 5, [], [5.1, 100]),
        ([100, 0], 2, [0], [100]),
        ([2.1, 0.5, 1.9], 2, [0.5, 1.9], [2.1]),
        ([3, 4], 3, [3], [4]),  # An answer after more than 2 s is enough, too.
    ],
)
async def test_look_ups_that_are_slow_delay_a_node_only_if_it_has_no_other_seed(
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    delays: list[float],
    seconds: float,
    found: list[float],
    silent: list[float],
) -> None:
    """A node that starts waits 3 s for other members. Then it starts alone."""

    async def getaddrinfo(host: str, port: int, **kind: int) -> list[object]:
        await trio.sleep(float(host.removeprefix("after-")))
        return [(0, 0, 0, "", (f"address of {host}", port))]

    monkeypatch.setattr(trio.socket, "getaddrinfo", getaddrinfo)
    began = trio.current_time()

    addresses = await Discovery([f"dns:after-{delay}:7101" for delay in delays]).resolve()

    assert trio.current_time() - began == pytest.approx(seconds)
    assert addresses == [(f"address of after-{delay}", 7101) for delay in found]
    assert [record.getMessage() for record in caplog.records] == [
        f"seed dns:after-{delay}:7101 cannot be looked up (no answer)" for delay in silent
    ]


async def test_an_error_without_a_text_is_logged_by_its_class(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def getaddrinfo(host: str, port: int, **kind: int) -> list[object]:
        raise OSError

    monkeypatch.setattr(trio.socket, "getaddrinfo", getaddrinfo)

    assert await Discovery(["a.test:1"]).resolve() == []
    assert "seed a.test:1 cannot be looked up (OSError)" in caplog.text


def test_a_pod_reads_name_and_address_from_its_environment() -> None:
    assert from_environment({"POD_NAME": "ringfence-0", "POD_IP": "10.1.2.3"}) == {
        "name": "ringfence-0",
        "advertise": "10.1.2.3",
    }
    assert from_environment({}) == {}
