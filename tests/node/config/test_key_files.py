import os
import stat
import tomllib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from node.config.access import KeyDir, load_access
from node.config.key_files import add_node, add_token, renew, revoke_token, rotate, write_keys
from node.config.key_listing import list_certificates, list_tokens
from ringfence.client.url import parse_token
from ringfence.errors import ConfigError
from ringfence.settings.token_file import Scope
from ringfence.transport.tls.certificates import (
    NODE_NAME,
    load_client_tls,
    load_server_tls,
    node_server_name,
)
from ringfence.wire import Hello, Role, matches

TOKENS = ("app:check", "operator:check,reset,observe")


def create_keys(
    directory: Path,
    names: Sequence[str] = (),
    addresses: Sequence[str] = (),
    tokens: Sequence[str] = TOKENS,
    days: int = 30,
) -> KeyDir:
    write_keys(directory, names, addresses, tokens, days)
    return KeyDir(directory)


def certificate_of(keys: KeyDir) -> x509.Certificate:
    return x509.load_pem_x509_certificate(keys.certificate.read_bytes())


def alternatives(keys: KeyDir) -> x509.SubjectAlternativeName:
    extensions = certificate_of(keys).extensions
    return extensions.get_extension_for_class(x509.SubjectAlternativeName).value


def test_every_file_and_the_directory_are_accessible_only_to_their_owner(tmp_path: Path) -> None:
    keys = create_keys(tmp_path / "deep" / "keys")

    assert stat.S_IMODE(keys.path.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in keys.path.iterdir()}
    assert modes == dict.fromkeys(
        [
            "ca.pem",
            "ca.key",
            "node.pem",
            "node.key",
            "cluster.key",
            "tokens.toml",
            "app.token",
            "operator.token",
        ],
        0o600,
    )


def test_nodes_and_clients_can_use_the_written_files(tmp_path: Path) -> None:
    keys = create_keys(tmp_path / "keys")
    now = datetime.now(UTC)

    load_server_tls(keys.certificate, keys.key, now)
    load_client_tls(keys.ca, now)
    token = parse_token(keys.token("app").read_text("ascii").strip())
    access = load_access(keys)

    assert (token.name, len(token.secret)) == ("app", 32)
    assert access.scopes_of(Hello(Role.CLIENT, "app", token.secret, 1)) == {Scope.CHECK}


def test_the_certificate_has_the_given_names_addresses_and_validity(tmp_path: Path) -> None:
    keys = create_keys(tmp_path / "keys", ["a.example.org"], ["10.0.0.1", "::1"], days=30)

    covered = alternatives(keys)
    assert covered.get_values_for_type(x509.DNSName) == [NODE_NAME, "a.example.org"]
    assert [str(ip) for ip in covered.get_values_for_type(x509.IPAddress)] == ["10.0.0.1", "::1"]
    validity = certificate_of(keys).not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=29) < validity <= timedelta(days=30)


def test_the_token_file_contains_only_digests_of_the_tokens(tmp_path: Path) -> None:
    keys = create_keys(tmp_path / "keys")

    records = tomllib.loads(keys.tokens.read_text("utf-8"))["tokens"]

    for name, scopes in (("app", ["check"]), ("operator", ["check", "reset", "observe"])):
        secret = parse_token(keys.token(name).read_text("ascii").strip()).secret
        assert matches(secret, bytes.fromhex(records[name]["digest"]))
        assert records[name]["scopes"] == scopes
        assert secret.hex() not in keys.tokens.read_text("utf-8")


def test_two_clusters_share_no_secret(tmp_path: Path) -> None:
    one, other = create_keys(tmp_path / "one"), create_keys(tmp_path / "other")

    for path in one.path.iterdir():
        assert path.read_bytes() != (other.path / path.name).read_bytes()


def test_existing_keys_are_not_overwritten(tmp_path: Path) -> None:
    keys = create_keys(tmp_path / "keys")
    before = {path: path.read_bytes() for path in keys.path.iterdir()}

    with pytest.raises(ConfigError, match="exists; name a directory without keys"):
        create_keys(tmp_path / "keys")

    assert {path: path.read_bytes() for path in keys.path.iterdir()} == before


def test_no_file_is_written_when_one_of_them_exists(tmp_path: Path) -> None:
    (tmp_path / "operator.token").write_text("precious", "ascii")

    with pytest.raises(ConfigError, match=r"operator\.token exists"):
        create_keys(tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["operator.token"]
    assert (tmp_path / "operator.token").read_text("ascii") == "precious"


def test_a_dangling_link_is_not_followed_when_keys_are_written(tmp_path: Path) -> None:
    directory, elsewhere = tmp_path / "keys", tmp_path / "elsewhere"
    directory.mkdir()
    (directory / "node.key").symlink_to(elsewhere)

    with pytest.raises(ConfigError, match=r"node\.key"):
        create_keys(directory)

    assert not elsewhere.exists()
    assert [path.name for path in directory.iterdir()] == ["node.key"]


@pytest.mark.parametrize(
    ("names", "addresses", "tokens", "message"),
    [
        ([], ["a.example.org"], TOKENS, r"--address 'a\.example\.org' is not an IP.*--name"),
        ([], ["10.0.0.1:7101"], TOKENS, "is not an IP address"),
        (["a..example.org"], [], TOKENS, r"a\.\.example\.org.* is not a host name"),
        ([""], [], TOKENS, "is not a host name"),
        (["10.0.0.1"], [], TOKENS, "--name '10.0.0.1' is an IP address; .*--address"),
        (["a b"], [], TOKENS, "'a b' is not a host name"),
        (["a.example.org:7101"], [], TOKENS, "is not a host name"),
        ([], [], ["app"], "--token 'app' is not NAME:SCOPE,SCOPE"),
        ([], [], [":check"], "--token ':check' is not NAME:SCOPE"),
        ([], [], ["../app:check"], "is not NAME:SCOPE"),
        ([], [], ["caf\u00e9:check"], "is not NAME:SCOPE"),
        ([], [], ["a" * 65 + ":check"], "is not NAME:SCOPE"),
        ([], [], ["app:chekc"], "'chekc'.* scopes are check, refund, reset, observe"),
        ([], [], ["app:"], "scopes are check, refund, reset, observe"),
        ([], [], ["app:check", "app:reset"], "two tokens are called 'app'"),
        ([], [], [], "no token"),
    ],
)
def test_invalid_arguments_are_named_and_nothing_is_written(
    tmp_path: Path, names: list[str], addresses: list[str], tokens: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        create_keys(tmp_path / "keys", names, addresses, tokens)

    assert not (tmp_path / "keys").exists()


def test_an_error_names_a_directory_that_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "ascii")

    with pytest.raises(ConfigError, match=r"file/keys: cannot be made"):
        create_keys(tmp_path / "file" / "keys")


def test_the_cluster_key_is_changed_in_three_steps(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys", [], [], ["app:check"], 2)
    file = KeyDir(tmp_path / "keys").cluster_key
    contents = [file.read_text("ascii").split()]
    for step in ("add", "use", "drop"):
        rotate(tmp_path / "keys", step)
        contents.append(file.read_text("ascii").split())

    [old], added, used, [new] = contents
    assert added == [old, new]
    assert used == [new, old]
    assert old != new
    assert file.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_changed_key_file_keeps_its_owner_and_group(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys", [], [], ["app:check"], 2)
    file = KeyDir(tmp_path / "keys").cluster_key
    os.chown(file, 4321, 4322)

    rotate(tmp_path / "keys", "add")

    assert (file.stat().st_uid, file.stat().st_gid) == (4321, 4322)


@pytest.mark.parametrize(("before", "after"), [(0o600, 0o600), (0o640, 0o640), (0o664, 0o640)])
def test_only_a_group_that_could_read_a_key_file_still_can(
    before: int, after: int, tmp_path: Path
) -> None:
    write_keys(tmp_path / "keys", [], [], ["app:check"], 2)
    file = KeyDir(tmp_path / "keys").cluster_key
    file.chmod(before)

    rotate(tmp_path / "keys", "add")

    assert stat.S_IMODE(file.stat().st_mode) == after


def test_the_error_for_a_wrong_rotation_step_names_the_right_one(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys", [], [], ["app:check"], 2)

    for step in ("use", "drop"):
        with pytest.raises(ConfigError, match="`add` comes first"):
            rotate(tmp_path / "keys", step)
    rotate(tmp_path / "keys", "add")
    with pytest.raises(ConfigError, match="`use` comes next"):
        rotate(tmp_path / "keys", "add")
    with pytest.raises(ConfigError, match="`ringfence keys new` writes one"):
        rotate(tmp_path, "add")


def names_of(certificate: Path) -> list[str]:
    parsed = x509.load_pem_x509_certificate(certificate.read_bytes())
    found = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return found.value.get_values_for_type(x509.DNSName)


def test_each_given_node_gets_its_own_certificate(tmp_path: Path) -> None:
    write_keys(tmp_path / "keys", ["lb.example.org"], ["10.0.0.1"], TOKENS, 30, ["a", "b"])
    keys = KeyDir(tmp_path / "keys")

    assert names_of(keys.certificate_of("a")) == [NODE_NAME, f"a.{NODE_NAME}", "lb.example.org"]
    assert names_of(keys.certificate_of("b")) == [NODE_NAME, f"b.{NODE_NAME}", "lb.example.org"]
    assert not keys.certificate.exists()
    assert stat.S_IMODE(keys.nodes.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in keys.nodes.iterdir()}
    assert modes == dict.fromkeys(["a.pem", "a.key", "b.pem", "b.key"], 0o600)
    for node in ("a", "b"):
        load_server_tls(keys.certificate_of(node), keys.key_of(node), datetime.now(UTC))


def test_a_node_is_added_and_its_certificate_renewed(tmp_path: Path) -> None:
    keys = create_keys(tmp_path / "keys")
    add_node(keys.path, "c", [], [], 30)
    before = keys.certificate_of("c").read_bytes(), keys.key_of("c").read_bytes()

    with pytest.raises(ConfigError, match=r"c.pem exists; give --replace"):
        add_node(keys.path, "c", [], [], 30)
    assert (keys.certificate_of("c").read_bytes(), keys.key_of("c").read_bytes()) == before
    add_node(keys.path, "c", ["c.example.org"], [], 30, replace=True)

    assert names_of(keys.certificate_of("c")) == [NODE_NAME, f"c.{NODE_NAME}", "c.example.org"]
    load_server_tls(keys.certificate_of("c"), keys.key_of("c"), datetime.now(UTC))
    assert sorted(path.name for path in keys.nodes.iterdir()) == ["c.key", "c.pem"]


def test_a_node_is_added_only_with_the_matching_authority_key(tmp_path: Path) -> None:
    keys, other = create_keys(tmp_path / "keys"), create_keys(tmp_path / "other")
    authority = keys.ca_key.read_bytes()

    keys.ca_key.write_bytes(other.ca_key.read_bytes())
    with pytest.raises(ConfigError, match="does not belong to the certificate"):
        add_node(keys.path, "c", [], [], 30)
    keys.ca_key.unlink()
    with pytest.raises(ConfigError, match=r"must hold ca\.pem and ca\.key"):
        add_node(keys.path, "c", [], [], 30)
    keys.ca_key.write_bytes(authority)
    for name in ("", "a\n", "x" * 1000):
        with pytest.raises(ConfigError, match="must have 1 to"):
            add_node(keys.path, name, [], [], 30)

    assert not keys.nodes.exists()


@pytest.mark.parametrize("name", ["", "x\n", "x" * 256])
def test_an_invalid_node_name_is_rejected_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="a node's name must have 1 to 255 printable"):
        write_keys(tmp_path / "keys", [], [], TOKENS, 30, ["a", name])

    assert not (tmp_path / "keys").exists()
    write_keys(tmp_path / "keys", [], [], TOKENS, 30, ["x" * 255])


@pytest.mark.parametrize("name", ["Web_1", "a.example.org", "../a", "127.0.0.1:7101", "ä", "x-a"])
def test_node_names_that_are_not_host_names_get_certificates(tmp_path: Path, name: str) -> None:
    write_keys(tmp_path / "keys", [], [], TOKENS, 30, [name, name.lower() + "2"])
    keys = KeyDir(tmp_path / "keys")

    [_, own] = names_of(keys.certificate_of(name))
    assert keys.certificate_of(name).parent == keys.nodes
    assert own == node_server_name(name)
    assert own.lower() != node_server_name(name.lower() + "2").lower()
    assert len(own.partition(".")[0]) <= 63


def test_node_names_that_differ_only_in_case_have_different_server_names() -> None:
    assert node_server_name("A") != node_server_name("a")
    assert node_server_name("A").lower() != node_server_name("a").lower()


def scopes_of(keys: KeyDir, file: Path) -> frozenset[Scope] | None:
    token = parse_token(file.read_text("ascii").strip())
    return load_access(keys).scopes_of(Hello(Role.CLIENT, token.name, token.secret, 1))


def test_an_added_token_works_and_existing_tokens_still_work(tmp_path: Path) -> None:
    keys = create_keys(tmp_path / "keys")

    file = add_token(keys.path, "batch:check,refund", ["jobs"])

    assert file == keys.token("batch")
    assert scopes_of(keys, file) == {Scope.CHECK, Scope.REFUND}
    assert len(parse_token(file.read_text("ascii").strip()).secret) == 32
    assert scopes_of(keys, keys.token("app")) == {Scope.CHECK}
    assert load_access(keys).tokens["batch"].domains == {"jobs"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in keys.path.iterdir()} == {0o600}


def test_revoking_a_token_removes_its_file_and_frees_its_name(tmp_path: Path) -> None:
    keys = create_keys(tmp_path / "keys")
    token = parse_token(keys.token("app").read_text("ascii").strip())

    assert revoke_token(keys.path, "app") == [keys.tokens, keys.token("app")]

    access = load_access(keys)
    assert access.scopes_of(Hello(Role.CLIENT, "app", token.secret, 1)) is None
    assert access.tokens.keys() == {"operator"}
    assert not keys.token("app").exists()
    add_token(keys.path, "app:check")
    assert load_access(keys).scopes_of(Hello(Role.CLIENT, "app", token.secret, 1)) is None


def test_a_token_can_be_revoked_without_its_token_file(tmp_path: Path) -> None:
    keys = create_keys(tmp_path / "keys")
    keys.token("app").unlink()

    assert revoke_token(keys.path, "app") == [keys.tokens]
    revoke_token(keys.path, "operator")
    assert load_access(keys).tokens == {}


def test_invalid_token_changes_leave_the_file_unchanged(tmp_path: Path) -> None:
    keys = create_keys(tmp_path / "keys")
    (keys.path / "old.token").write_text("precious", "ascii")
    before = {path: path.read_bytes() for path in keys.path.iterdir()}

    for text, domains, message in (
        ("app:check", [], r"got 'app'; `ringfence keys revoke-token .* app` removes"),
        ("new:chekc", [], "the token 'new:chekc': there is no scope 'chekc'"),
        ("../x:check", [], "is not NAME:SCOPE"),
        ("old:check", [], r"old\.token exists"),
        ("new:check,observe", ["api"], "token 'new': the scope observe is valid for all"),
    ):
        with pytest.raises(ConfigError, match=message):
            add_token(keys.path, text, domains)
    with pytest.raises(ConfigError, match="got 'ap'; known are app, operator"):
        revoke_token(keys.path, "ap")
    with pytest.raises(ConfigError, match="nowhere: cannot be opened"):
        add_token(tmp_path / "nowhere", "new:check")
    assert {path: path.read_bytes() for path in keys.path.iterdir()} == before


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[tokens\n", "the file must be TOML"),
        (b"tokens = {}\n", "the file must be TOML"),
        (b'[tokens.web]\ndigest = "\xff"\n', "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_an_error_names_a_token_file_to_which_no_token_can_be_added(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    keys = create_keys(tmp_path / "keys")
    keys.tokens.unlink()
    if content is not None:
        keys.tokens.write_bytes(content)

    with pytest.raises(ConfigError, match=rf"tokens\.toml: {message}"):
        add_token(keys.path, "new:check")

    assert not keys.token("new").exists()
    assert content is None or keys.tokens.read_bytes() == content


def test_an_error_names_a_token_file_from_which_a_token_must_be_removed_by_hand(
    tmp_path: Path,
) -> None:
    keys = create_keys(tmp_path / "keys")
    keys.tokens.write_text('[tokens]\napp = {digest = "00", scopes = []}\n', "ascii")

    with pytest.raises(ConfigError, match=r"tokens\.toml: .*remove it by hand"):
        revoke_token(keys.path, "app")

    assert keys.token("app").exists()


def test_replaced_token_files_stay_readable_by_their_group_only(
    tmp_path: Path,
) -> None:
    """Change the file as root while the service runs as another user."""
    keys = create_keys(tmp_path / "keys")
    keys.tokens.chmod(0o664)
    if os.geteuid() == 0:
        os.chown(keys.tokens, 1234, 2345)
    owner = keys.tokens.stat().st_uid, keys.tokens.stat().st_gid

    add_token(keys.path, "batch:check")

    after = keys.tokens.stat()
    assert stat.S_IMODE(after.st_mode) == 0o640
    assert (after.st_uid, after.st_gid) == owner
    assert stat.S_IMODE(keys.token("batch").stat().st_mode) == 0o600


def alternative_names_of(certificate: Path) -> list[str]:
    parsed = x509.load_pem_x509_certificate(certificate.read_bytes())
    found = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return [str(name.value) for name in found.value]


def test_renewed_certificates_keep_names_and_addresses_and_get_new_keys(tmp_path: Path) -> None:
    directory = tmp_path / "keys"
    write_keys(directory, ["lb.example.org"], ["10.0.0.1", "::1"], TOKENS, 2, ["a", "Web_1"])
    keys = KeyDir(directory)
    add_node(directory, "c", ["c.example.org"], [], 2)
    nodes = ("a", "Web_1", "c")
    covered = {node: alternative_names_of(keys.certificate_of(node)) for node in nodes}
    secrets = {node: keys.key_of(node).read_bytes() for node in nodes}

    written = renew(directory, [], 90)

    assert set(written) == {
        path for node in nodes for path in (keys.certificate_of(node), keys.key_of(node))
    }
    for node in nodes:
        assert alternative_names_of(keys.certificate_of(node)) == covered[node]
        assert keys.key_of(node).read_bytes() != secrets[node]
        load_server_tls(keys.certificate_of(node), keys.key_of(node), datetime.now(UTC))
        assert stat.S_IMODE(keys.key_of(node).stat().st_mode) == 0o600
    rows = {row.file: row for row in list_certificates(keys, datetime.now(UTC))}
    assert {rows[f"nodes/{node}.pem"].days_left for node in ("a", "c")} == {89}


def test_only_given_nodes_and_the_shared_certificate_are_renewed(tmp_path: Path) -> None:
    keys = create_keys(tmp_path / "keys", ["lb.example.org"])
    add_node(keys.path, "a", [], [], 2)
    add_node(keys.path, "b", [], [], 2)
    before = keys.certificate.read_bytes(), keys.certificate_of("b").read_bytes()

    assert renew(keys.path, ["a"], 90) == [keys.certificate_of("a"), keys.key_of("a")]
    assert (keys.certificate.read_bytes(), keys.certificate_of("b").read_bytes()) == before
    assert keys.certificate in renew(keys.path, [], 90)
    assert alternative_names_of(keys.certificate) == [NODE_NAME, "lb.example.org"]


def test_a_failed_renewal_names_the_certificate_and_changes_nothing(tmp_path: Path) -> None:
    keys = create_keys(tmp_path / "keys")
    add_node(keys.path, "a", [], [], 2)
    before = {path: path.read_bytes() for path in keys.nodes.iterdir()}

    with pytest.raises(ConfigError, match=r"got 'b'; .*`ringfence keys add-node .* b`"):
        renew(keys.path, ["a", "b"], 90)
    keys.certificate.write_text("no certificate", "ascii")
    with pytest.raises(ConfigError, match=r"node\.pem holds no certificate"):
        renew(keys.path, [], 90)
    keys.ca_key.unlink()
    with pytest.raises(ConfigError, match=r"must hold ca\.pem and ca\.key"):
        renew(keys.path, ["a"], 90)
    assert {path: path.read_bytes() for path in keys.nodes.iterdir()} == before


def test_the_key_listing_is_complete_and_shows_no_secret(tmp_path: Path) -> None:
    keys = create_keys(tmp_path / "keys", ["lb.example.org"], ["10.0.0.1"], days=10)
    add_token(keys.path, "shop:check", ["web", "shop"])

    certificates = list_certificates(keys, datetime.now(UTC))
    tokens = list_tokens(keys)

    assert [row.file for row in certificates] == ["ca.pem", "node.pem"]
    assert certificates[1].days_left == 9
    assert certificates[1].names == [NODE_NAME, "lb.example.org"]
    assert certificates[1].addresses == ["10.0.0.1"]
    assert [(row.name, row.scopes, row.domains) for row in tokens] == [
        ("app", ["check"], None),
        ("operator", ["check", "observe", "reset"], None),
        ("shop", ["check"], ["shop", "web"]),
    ]
    digests = [token.digest.hex() for token in load_access(keys).tokens.values()]
    assert not any(digest in repr((certificates, tokens)) for digest in digests)
