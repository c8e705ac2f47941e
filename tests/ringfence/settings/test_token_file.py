"""Reading of `tokens.toml`, for nodes and gateways."""

from pathlib import Path

import pytest

from ringfence.errors import ConfigError
from ringfence.settings.token_file import Scope, TokenEntry, load_token_file

DIGEST = "0f" * 32


def write_tokens(directory: Path, text: str) -> Path:
    path = directory / "tokens.toml"
    path.write_text(text, "utf-8")
    return path


def test_tokens_have_digest_scopes_and_domains(tmp_path: Path) -> None:
    path = write_tokens(
        tmp_path,
        f'[tokens.app]\ndigest = "{DIGEST}"\nscopes = ["check", "refund"]\n'
        f'[tokens."batch jobs"]\ndigest = "{DIGEST}"\nscopes = []\ndomains = ["jobs"]\n',
    )

    digest = bytes.fromhex(DIGEST)
    assert load_token_file(path) == {
        "app": TokenEntry(digest, frozenset([Scope.CHECK, Scope.REFUND])),
        "batch jobs": TokenEntry(digest, frozenset(), frozenset(["jobs"])),
    }


def test_an_empty_file_has_no_tokens(tmp_path: Path) -> None:
    assert load_token_file(write_tokens(tmp_path, "")) == {}


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ("scopes = []", "token 'app': the value must have 'digest'"),
        (f'digest = "{DIGEST}"', "token 'app': the value must have 'scopes'"),
        ('digest = "00"\nscopes = []', "token 'app': digest must have 32 bytes"),
        ('digest = "zz"\nscopes = []', "token 'app': digest must have 32 bytes"),
        ("digest = 3\nscopes = []", "token 'app': digest must be text, got whole number"),
        (f'digest = "{DIGEST}"\nscopes = "check"', "token 'app': scopes must be a list"),
        (
            f'digest = "{DIGEST}"\nscopes = ["check", "chekc"]',
            "token 'app': scopes[1] must be one of check, refund, reset, observe, admin, "
            "got 'chekc'; did you mean 'check'?",
        ),
        (f'digest = "{DIGEST}"\nscopes = ["read"]', "got 'read'"),
        (
            f'digest = "{DIGEST}"\nscopes = ["check", "admin"]\ndomains = ["api"]',
            "token 'app': the scope admin is valid for all domains",
        ),
        (
            f'digest = "{DIGEST}"\nscopes = []\ndomain = "x"',
            "token 'app': unknown setting 'domain'; did you mean 'domains'?",
        ),
    ],
)
def test_a_wrong_record_is_reported_with_file_and_token(
    tmp_path: Path, record: str, message: str
) -> None:
    path = write_tokens(tmp_path, f"[tokens.app]\n{record}\n")

    with pytest.raises(ConfigError, match="ringfence keys new") as caught:
        load_token_file(path)

    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize("content", [b"[tokens", b"tokens = 3", b"token = {}", b"\xff"])
def test_a_file_without_a_valid_token_table_is_rejected(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tokens.toml"
    path.write_bytes(content)

    with pytest.raises(ConfigError, match=r"tokens\.toml: .*ringfence keys new"):
        load_token_file(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokens\.toml: cannot be read: .*ringfence keys new"):
        load_token_file(tmp_path / "tokens.toml")
