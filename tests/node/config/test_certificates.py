"""Choice of a node's certificate, and verification of peer names."""

import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import copytree

import pytest

from node.config.access import KeyDir
from node.config.certificates import certificate_files, expiry_of, load_node_tls
from node.config.key_files import write_keys
from ringfence.errors import ConfigError
from ringfence.transport.tls.certificates import NODE_NAME, node_server_name, node_server_names

NOW = datetime.now(UTC) + timedelta(hours=1)
"""Time after the creation of all certificates, also when earlier tests are slow."""


def create_keys(directory: Path, *nodes: str) -> KeyDir:
    write_keys(directory, [], [], ["app:check"], 2, nodes)
    return KeyDir(directory)


def test_a_node_presents_its_own_certificate_and_verifies_names(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = create_keys(tmp_path / "keys", "a", "b")

    client, server = load_node_tls(keys, "a", NOW)

    assert node_server_names(server) == {"a.node.ringfence.internal"}
    assert client.name_of("b") == "b.node.ringfence.internal"
    assert client.name_of("") == NODE_NAME
    assert caplog.text == ""


def test_expiry_of_returns_the_expiry_of_the_node_and_its_authority(tmp_path: Path) -> None:
    keys = create_keys(tmp_path / "keys", "a")

    found = expiry_of(*load_node_tls(keys, "a", NOW))

    assert found.keys() == {"node", "ca"}
    assert abs(found["node"] - (NOW.timestamp() + 2 * 86_400)) < 86_400


def test_with_the_shared_certificate_names_are_not_verified(tmp_path: Path) -> None:
    keys = create_keys(tmp_path / "keys")

    client, server = load_node_tls(keys, "a", NOW)

    assert certificate_files(keys, "a") == (keys.certificate, keys.key)
    assert node_server_names(server) == frozenset()
    assert client.name_of("b") == NODE_NAME


def test_the_shared_certificate_is_accepted_while_its_file_exists(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = create_keys(tmp_path / "keys", "a")
    keys.certificate.write_bytes(b"peers may still show this one")

    with caplog.at_level(logging.WARNING):
        client, server = load_node_tls(keys, "a", NOW)

    assert node_server_name("a") in node_server_names(server)
    assert client.name_of("b") == NODE_NAME
    assert "remove node.pem and node.key" in caplog.text


@pytest.mark.parametrize("file_stem", ["nodes/c", "node"])
def test_the_certificate_of_another_node_is_refused(tmp_path: Path, file_stem: str) -> None:
    keys = create_keys(tmp_path / "keys", "b")
    (keys.path / f"{file_stem}.pem").write_bytes(keys.certificate_of("b").read_bytes())
    (keys.path / f"{file_stem}.key").write_bytes(keys.key_of("b").read_bytes())

    with pytest.raises(ConfigError) as reported:
        load_node_tls(keys, "c", NOW)

    assert (
        "the certificate of node 'c' must name c.node.ringfence.internal, "
        "got b.node.ringfence.internal" in str(reported.value)
    )


def test_a_shared_certificate_is_rejected_as_the_certificate_of_one_node(tmp_path: Path) -> None:
    shared = create_keys(tmp_path / "shared")
    keys = create_keys(tmp_path / "keys", "c")
    keys.certificate_of("c").write_bytes(shared.certificate.read_bytes())
    keys.key_of("c").write_bytes(shared.key.read_bytes())

    with pytest.raises(ConfigError, match="got no node name"):
        load_node_tls(keys, "c", NOW)


def test_a_certificate_of_another_authority_is_refused(tmp_path: Path) -> None:
    keys, others = create_keys(tmp_path / "keys", "a"), create_keys(tmp_path / "others", "a")
    both = keys.ca.read_bytes() + others.ca.read_bytes()
    keys.ca.write_bytes(others.ca.read_bytes())

    with pytest.raises(ConfigError, match=r"must be signed by the authority in .*ca\.pem"):
        load_node_tls(keys, "a", NOW)
    keys.ca.write_bytes(both)  # The file has both during a rotation.
    load_node_tls(keys, "a", NOW)


def test_the_error_for_a_missing_certificate_explains_how_to_create_one(tmp_path: Path) -> None:
    keys = create_keys(tmp_path / "keys", "b")

    with pytest.raises(ConfigError, match=r"hold nodes/c.pem.* or node.pem, got neither; make it"):
        load_node_tls(keys, "c", NOW)


def test_a_certificate_that_cannot_be_looked_up_is_reported_by_name(tmp_path: Path) -> None:
    """The same error occurs in a folder that the user of the node cannot enter."""
    with pytest.raises(ConfigError, match=r"/x{300}/nodes/c\.pem: cannot be read \(File name too"):
        load_node_tls(KeyDir(tmp_path / ("x" * 300)), "c", NOW)


def test_a_nodes_own_certificate_can_replace_the_shared_file(tmp_path: Path) -> None:
    keys = create_keys(tmp_path / "keys", "b")
    mounted = KeyDir(Path(copytree(keys.path, tmp_path / "mounted")))
    mounted.certificate_of("b").rename(mounted.certificate)
    mounted.key_of("b").rename(mounted.key)

    client, _ = load_node_tls(mounted, "b", NOW)

    assert client.name_of("a") == node_server_name("a")
