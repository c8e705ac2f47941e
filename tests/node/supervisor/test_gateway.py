"""Cluster address of a gateway that runs beside a node."""

from pathlib import Path

import pytest

from node.config.settings import NodeSettings
from node.supervisor.gateway import check_gateway, cluster_url
from ringfence.client.url import parse_url
from ringfence.errors import ConfigError


@pytest.mark.parametrize(
    ("listen", "seed"),
    [
        ("127.0.0.1:7101", ("127.0.0.1", 7101)),
        ("0.0.0.0:7102", ("127.0.0.1", 7102)),
        ("[::]:7103", ("::1", 7103)),
        ("node.example.org:7104", ("node.example.org", 7104)),
    ],
)
def test_the_gateway_connects_to_the_node_beside_it(listen: str, seed: tuple[str, int]) -> None:
    url = parse_url(cluster_url(NodeSettings(name="a", listen=listen, datacenter="west")))

    assert (url.seeds, url.datacenter, url.token) == ((seed,), "west", None)


@pytest.mark.parametrize(
    ("listen", "place"),
    [
        ("127.0.0.1:7101", "127.0.0.1:7101"),
        ("[2001:db8::1]:7103", "[2001:db8::1]:7103"),
        ("node.example.org:7104", "node.example.org:7104"),
    ],
)
def test_only_ipv6_addresses_are_in_brackets(listen: str, place: str) -> None:
    url = cluster_url(NodeSettings(name="a", listen=listen))

    assert url.startswith(f"ringfence://{place}?")


def test_the_gateway_of_several_members_has_all_of_them_as_seeds() -> None:
    nodes = [NodeSettings(name="a", listen=f"127.0.0.1:{port}") for port in (7101, 7102)]

    url = parse_url(cluster_url(*nodes))

    assert url.seeds == (("127.0.0.1", 7101), ("127.0.0.1", 7102))


@pytest.mark.parametrize(("files", "name"), [(["app"], "app"), (["app", "gateway"], "gateway")])
def test_with_keys_the_gateway_uses_its_own_token_or_else_that_of_an_application(
    tmp_path: Path, files: list[str], name: str
) -> None:
    for each in files:
        (tmp_path / f"{each}.token").write_text(f"{each}.{'00' * 16}\n", "ascii")

    url = parse_url(cluster_url(NodeSettings(name="a", keys=str(tmp_path))))

    assert url.token is not None
    assert url.token.name == name
    assert url.ca == tmp_path / "ca.pem"


def test_a_token_file_that_is_no_text_is_reported(tmp_path: Path) -> None:
    (tmp_path / "app.token").write_bytes(b"app.\xff\xfe\n")

    with pytest.raises(ConfigError, match="token in the cluster address must read"):
        check_gateway([NodeSettings(name="a", keys=str(tmp_path))], None, ())


def test_a_token_that_cannot_be_looked_up_is_reported_by_name(tmp_path: Path) -> None:
    """The same error occurs in a folder that the user of the node cannot enter."""
    keys = str(tmp_path / ("x" * 300))

    with pytest.raises(ConfigError, match=r"gateway\.token: cannot be read \(File name too long"):
        cluster_url(NodeSettings(name="a", keys=keys))


def test_the_error_without_any_token_states_which_token_to_create(tmp_path: Path) -> None:
    files = r"neither \S*/gateway\.token nor \S*/app\.token is there"
    with pytest.raises(ConfigError, match=rf"{files}; .*keys add-token .* gateway:check"):
        cluster_url(NodeSettings(name="a", keys=str(tmp_path)))
