from pathlib import Path

import pytest

from node.config.access import Access, KeyDir, load_access
from ringfence.errors import ConfigError
from ringfence.settings.token_file import Scope, TokenEntry
from ringfence.wire import Hello, Role, node_proof, token_digest

CLUSTER_KEY = bytes(range(32))
SECRET = b"s" * 32
ACCESS = Access(
    (CLUSTER_KEY,),
    "",
    {
        "app": TokenEntry(token_digest(SECRET), frozenset({Scope.CHECK})),
        "nobody": TokenEntry(token_digest(SECRET), frozenset()),
    },
)


def client(name: str, secret: bytes) -> Hello:
    return Hello(Role.CLIENT, name, secret, 1)


def node(name: str, proof: bytes) -> Hello:
    return Hello(Role.NODE, name, proof, 1)


def write_key_dir(directory: Path, cluster_key: str, tokens: str) -> KeyDir:
    keys = KeyDir(directory)
    keys.cluster_key.write_text(cluster_key, "utf-8")
    keys.tokens.write_text(tokens, "utf-8")
    return keys


def test_a_client_gets_the_scopes_of_its_token() -> None:
    assert ACCESS.scopes_of(client("app", SECRET)) == {Scope.CHECK}


@pytest.mark.parametrize(
    ("name", "secret"),
    [("app", b"t" * 32), ("app", b""), ("stranger", SECRET), ("stranger", b""), ("nobody", SECRET)],
)
def test_wrong_secrets_unknown_names_and_tokens_without_scopes_get_no_access(
    name: str, secret: bytes
) -> None:
    assert ACCESS.scopes_of(client(name, secret)) is None


def test_a_node_that_proves_the_cluster_key_gets_all_scopes() -> None:
    assert ACCESS.scopes_of(node("b", ACCESS.proof_of("b"))) == frozenset(Scope)


@pytest.mark.parametrize(
    "proof",
    [
        node_proof(CLUSTER_KEY, "a"),  # the proof of another node
        node_proof(b"", "b"),
        CLUSTER_KEY,
        b"",
    ],
)
def test_a_node_with_a_wrong_proof_gets_no_access(proof: bytes) -> None:
    assert ACCESS.scopes_of(node("b", proof)) is None


def test_a_token_is_not_accepted_as_the_proof_of_a_node() -> None:
    assert ACCESS.scopes_of(node("app", SECRET)) is None


def test_without_keys_all_clients_and_nodes_of_the_cluster_are_accepted() -> None:
    access = load_access(None)

    assert access.scopes_of(client("anonymous", b"")) == frozenset(Scope)
    assert access.scopes_of(node("b", access.proof_of("b"))) == frozenset(Scope)


def test_keys_are_read_from_their_directory(tmp_path: Path) -> None:
    keys = write_key_dir(
        tmp_path,
        CLUSTER_KEY.hex() + "\n",
        f'[tokens."app"]\ndigest = "{token_digest(SECRET).hex()}"\nscopes = ["check", "reset"]\n',
    )

    access = load_access(keys)

    assert not access.is_open
    assert access.scopes_of(client("app", SECRET)) == {Scope.CHECK, Scope.RESET}
    assert access.proof_of("a") == node_proof(CLUSTER_KEY, "a")


@pytest.mark.parametrize("cluster_key", ["", "not hexadecimal", "00ff", "\u00e9"])
def test_an_invalid_cluster_key_is_rejected_with_its_file_name(
    tmp_path: Path, cluster_key: str
) -> None:
    with pytest.raises(ConfigError, match=r"cluster\.key.*ringfence keys (new|rotate)"):
        load_access(write_key_dir(tmp_path, cluster_key, ""))


@pytest.mark.parametrize(
    ("sizes", "error"),
    [
        ((31,), "must have 32 bytes, got 31"),
        ((33,), "must have 32 bytes, got 33"),
        ((32,), None),
        ((32, 32), None),
        ((32, 16), "must have 32 bytes, got 16"),
        ((32, 32, 32), "got 3"),
        ((), "got 0"),
    ],
)
def test_a_node_has_one_or_two_cluster_keys_of_32_bytes(
    tmp_path: Path, sizes: tuple[int, ...], error: str | None
) -> None:
    cluster_keys = tuple([bytes([size]) * size for size in sizes])
    text = "".join(f"{key.hex()}\n" for key in cluster_keys)
    keys = write_key_dir(tmp_path, text, "")

    if error is None:
        assert load_access(keys).cluster_keys == cluster_keys
    else:
        with pytest.raises(ConfigError, match=error):
            load_access(keys)


def test_two_cluster_keys_are_accepted_and_the_first_is_used() -> None:
    old, new = b"o" * 32, b"n" * 32
    changing = Access((new, old), "prod")

    for known in ((new,), (old,)):
        proof = Access(known, "prod").proof_of("b", b"binding")
        assert changing.scopes_of(node("b", proof), b"binding") == frozenset(Scope)
    assert changing.proof_of("b", b"binding") == Access((new,), "prod").proof_of("b", b"binding")
    third = Access((b"x" * 32,), "prod").proof_of("b", b"binding")
    assert changing.scopes_of(node("b", third), b"binding") is None


def test_each_node_has_its_own_secret_for_stateless_resets() -> None:
    old, new = b"o" * 32, b"n" * 32
    secret = Access((new, old)).reset_secret("a")

    assert len(secret) == 32
    assert secret == Access((new,)).reset_secret("a")
    assert secret not in (Access((new,)).reset_secret("b"), Access((old,)).reset_secret("a"))
    assert secret != Access((new,)).proof_of("a")
    assert Access(is_open=True).reset_secret("a") == b""


@pytest.mark.parametrize(
    "tokens",
    [
        "tokens = 3",
        "[tokens",
        '[token."app"]\ndigest = "00"\nscopes = []',
        '[tokens."app"]\ndigest = "xyz"\nscopes = ["check"]',
        '[tokens."app"]\ndigest = "00ff"\nscopes = ["check"]',
        f'[tokens."app"]\ndigest = "{"00" * 32}"\nscopes = ["chekc"]',
        '[tokens."app"]\nscopes = ["check"]',
    ],
)
def test_an_invalid_token_file_is_rejected_with_its_file_name(tmp_path: Path, tokens: str) -> None:
    with pytest.raises(ConfigError, match=r"tokens\.toml.*ringfence keys new"):
        load_access(write_key_dir(tmp_path, CLUSTER_KEY.hex(), tokens))


def test_a_key_folder_that_cannot_be_looked_up_is_reported_by_name(tmp_path: Path) -> None:
    """The same error occurs for a folder inside a folder that the user of the node cannot enter."""
    with pytest.raises(ConfigError, match=r"/x{300}: cannot be read \(File name too long\); make"):
        load_access(KeyDir(tmp_path / ("x" * 300)))


def test_missing_key_files_are_reported_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"keys: .*no such directory.*ringfence keys new"):
        load_access(KeyDir(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"cluster\.key.*ringfence keys (new|rotate)"):
        load_access(KeyDir(tmp_path))
    (tmp_path / "cluster.key").write_text(CLUSTER_KEY.hex(), "ascii")
    with pytest.raises(ConfigError, match=r"tokens\.toml.*ringfence keys new"):
        load_access(KeyDir(tmp_path))
