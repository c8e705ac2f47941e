"""Authorization of the gateway's clients by tokens and certificates."""

import os
from pathlib import Path

import pytest

from node.config.key_files import add_token, revoke_token
from ringfence.errors import ConfigError
from ringfence.gateway.process.tokens import TokenReload, Tokens, load_tokens
from ringfence.settings.token_file import Scope
from ringfence.wire.credentials import token_digest
from tests.ringfence.gateway.gateway import api, ask, json_of

SECRET = bytes(range(16))


def write_token_file(
    directory: Path, scopes: str, digest: str = token_digest(SECRET).hex()
) -> Path:
    path = directory / "tokens.toml"
    path.write_text(f'[tokens.app]\ndigest = "{digest}"\nscopes = {scopes}\n', "utf-8")
    return path


def bearer(name: str = "app", secret: bytes = SECRET) -> str:
    return f"Bearer {name}.{secret.hex()}"


@pytest.mark.parametrize(
    ("scopes", "granted"),
    [
        ('["check"]', {Scope.CHECK}),
        ('["observe"]', {Scope.OBSERVE}),
        ('["admin"]', {Scope.ADMIN}),
        ('["check", "reset"]', {Scope.CHECK, Scope.RESET}),
        ('["check", "refund", "observe", "reset", "admin"]', set(Scope)),
    ],
)
def test_a_token_grants_its_scopes_in_gateway_and_node_terms(
    tmp_path: Path, scopes: str, granted: set[Scope]
) -> None:
    assert load_tokens(write_token_file(tmp_path, scopes)).scopes_of(bearer()) == granted


@pytest.mark.parametrize(
    ("scope", "method", "path", "sufficient"),
    [
        ("check", "POST", "/v1/peek", None),
        ("check", "GET", "/metrics", "observe"),
        ("check", "GET", "/v1/counters", "observe"),
        ("check", "POST", "/v1/reset", "reset"),
        ("check", "POST", "/v1/refund", "refund"),
        ("check", "POST", "/v1/charge", None),
        ("observe", "POST", "/v1/charge", "check"),
        ("observe", "POST", "/v1/peek", None),
        ("observe", "GET", "/metrics", None),
        ("observe", "GET", "/v1/auth", "check"),
        ("observe", "POST", "/v1/reset", "reset"),
        ("reset", "POST", "/v1/reset", None),
        ("admin", "POST", "/v1/reset", "reset"),
        ("admin", "POST", "/v1/peek", "check or observe"),
        ("admin", "GET", "/v1/counters", "observe"),
    ],
)
async def test_a_refusal_names_the_least_sufficient_scope(
    tmp_path: Path, scope: str, method: str, path: str, sufficient: str | None
) -> None:
    tokens = load_tokens(write_token_file(tmp_path, f'["{scope}"]'))
    body = {"domain": "api", "descriptors": [{"client": "x"}]} if method == "POST" else None
    async with api(tokens) as gateway:
        answer = await ask(gateway, method, path, body, {"Authorization": bearer()})

    if sufficient is None:
        assert answer.status == 200
    else:
        assert answer.status == 403
        assert json_of(answer)["detail"] == f"the token lacks the scope {sufficient}"


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer app",
        "Bearer app.zz",
        "Basic " + bearer()[7:],
        bearer(secret=bytes(16)),
        bearer("other"),
    ],
)
def test_invalid_credentials_have_no_scope(tmp_path: Path, header: str | None) -> None:
    assert load_tokens(write_token_file(tmp_path, '["check"]')).scopes_of(header) is None


def test_a_token_restricted_to_domains_has_no_scope(tmp_path: Path) -> None:
    path = write_token_file(tmp_path, '["check"]\ndomains = ["shop"]')

    assert load_tokens(path).scopes_of(bearer()) == frozenset()


def test_without_a_token_file_every_client_has_every_scope() -> None:
    assert Tokens().scopes_of(None) == set(Scope)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/v1/check", 200),
        ("POST", "/v1/reset", 403),
        ("POST", "/v1/refund", 403),
        ("GET", "/v1/counters", 403),
    ],
)
async def test_a_certificate_alone_grants_the_scope_check(
    method: str, path: str, status: int
) -> None:
    body = {"domain": "api", "descriptors": [{"client": "x"}]} if method == "POST" else None
    async with api(load_tokens(None, asks_certificates=True)) as gateway:
        answer = await ask(gateway, method, path, body)

    assert answer.status == status
    if status == 403:
        assert json_of(answer)["detail"].startswith("without `tokens` a certificate grants")


def test_with_a_token_file_a_certificate_grants_no_scope(tmp_path: Path) -> None:
    tokens = load_tokens(write_token_file(tmp_path, '["check"]'), asks_certificates=True)

    assert tokens.scopes_of(None) is None


@pytest.mark.parametrize(
    ("scopes", "digest", "error"),
    [
        (
            '["chek"]',
            token_digest(SECRET).hex(),
            "must be one of check, refund, reset, observe, admin, got 'chek'",
        ),
        ('["check"]', "00", "32 bytes"),
        ('["check"]', "zz", "hexadecimal"),
        ('"check"', token_digest(SECRET).hex(), "scopes"),
    ],
)
def test_an_error_names_the_invalid_file(
    tmp_path: Path, scopes: str, digest: str, error: str
) -> None:
    path = write_token_file(tmp_path, scopes, digest)

    with pytest.raises(ConfigError, match="keys new") as caught:
        load_tokens(path)

    assert str(path) in str(caught.value)
    assert error in str(caught.value)


def test_a_token_file_without_tokens_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text("", "utf-8")

    with pytest.raises(ConfigError, match="must have at least one token"):
        load_tokens(path)


def test_a_changed_token_file_applies_from_the_next_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "ringfence.gateway")
    path = write_token_file(tmp_path, '["check"]')
    tokens = load_tokens(path)
    file = TokenReload(path, tokens)
    file.reload_if_changed()

    add_token(tmp_path, "new:observe")
    file.reload_if_changed()
    assert tokens.scopes_of(f"Bearer {(tmp_path / 'new.token').read_text().strip()}") == {
        Scope.OBSERVE
    }
    revoke_token(tmp_path, "app")
    file.reload_if_changed()
    assert tokens.scopes_of(bearer()) is None

    assert [record.getMessage() for record in caplog.records] == [
        "tokens reloaded; added: new",
        "tokens reloaded; revoked: app",
    ]


@pytest.mark.parametrize("content", ["[tokens", "", "[tokens]\n"])
def test_an_invalid_missing_or_empty_token_file_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    path = write_token_file(tmp_path, '["check"]')
    tokens = load_tokens(path)
    file = TokenReload(path, tokens)

    path.write_text(content, "utf-8")
    file.reload_if_changed()
    file.reload_if_changed()
    path.unlink()
    file.reload_if_changed()

    assert tokens.scopes_of(bearer()) == {Scope.CHECK}
    [record] = caplog.records
    assert record.getMessage().startswith("tokens not reloaded, the old ones stay in force")


def test_a_token_file_that_becomes_readable_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = write_token_file(tmp_path, '["check"]')
    tokens = load_tokens(path)
    file = TokenReload(path, tokens)
    write_token_file(tmp_path, '["observe"]')

    def refuse(path: Path, encoding: str) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_text", refuse)
        file.reload_if_changed()
        file.reload_if_changed()
    assert tokens.scopes_of(bearer()) == {Scope.CHECK}
    assert len(caplog.records) == 1

    file.reload_if_changed()

    assert tokens.scopes_of(bearer()) == {Scope.OBSERVE}


def test_a_token_file_of_equal_size_and_modification_time_is_loaded(tmp_path: Path) -> None:
    path = write_token_file(tmp_path, '["check"]')
    os.utime(path, (1000, 1000))
    tokens = load_tokens(path)
    file = TokenReload(path, tokens)
    file.reload_if_changed()

    ctime = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns == ctime:  # The clock of some file systems is coarse.
        write_token_file(tmp_path, '["reset"]')
        os.utime(path, (1000, 1000))
    file.reload_if_changed()

    assert tokens.scopes_of(bearer()) == {Scope.RESET}
