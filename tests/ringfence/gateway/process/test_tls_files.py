"""Errors for invalid certificate files, before the gateway serves."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from node.config.access import KeyDir
from node.config.key_files import write_keys
from ringfence.errors import ConfigError
from ringfence.gateway import load_gateway_settings
from ringfence.gateway.process.settings import GatewaySettings
from ringfence.gateway.process.supervisor import reload_if_valid
from ringfence.gateway.process.tls_files import check_tls_files


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyDir:
    return new_keys(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def other_keys(tmp_path_factory: pytest.TempPathFactory) -> KeyDir:
    return new_keys(tmp_path_factory.mktemp("others"))


def new_keys(directory: Path) -> KeyDir:
    write_keys(directory, (), ("127.0.0.1",), ("app:check",), 1)
    return KeyDir(directory)


def error_of(certificate: Path, key: Path, client_ca: Path | str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        check_tls_files(str(certificate), str(key), str(client_ca), datetime.now(UTC))
    return str(caught.value)


def test_valid_files_are_accepted(keys: KeyDir) -> None:
    now = datetime.now(UTC)

    check_tls_files(str(keys.certificate), str(keys.key), str(keys.ca), now)
    check_tls_files(str(keys.certificate), str(keys.key), "", now)


def test_an_error_names_files_with_the_wrong_content(keys: KeyDir, tmp_path: Path) -> None:
    invalid = tmp_path / "odd.pem"
    invalid.write_text("rubbish", "utf-8")

    assert f"{invalid} holds no certificate" in error_of(invalid, keys.key)
    assert f"{invalid} is not an unencrypted private key" in error_of(keys.certificate, invalid)
    error = error_of(keys.certificate, keys.key, invalid)
    assert error.startswith(f"tls_client_ca: {invalid} holds no certificate")


def test_an_error_names_an_authority_file_with_broken_pem(keys: KeyDir, tmp_path: Path) -> None:
    invalid = tmp_path / "odd.pem"
    invalid.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "utf-8")

    assert "tls_client_ca" in error_of(keys.certificate, keys.key, invalid)


def test_a_private_key_of_another_certificate_is_reported(keys: KeyDir, other_keys: KeyDir) -> None:
    error = error_of(keys.certificate, other_keys.key)

    assert f"the key in {other_keys.key} does not belong to the certificate in" in error


def test_an_encrypted_private_key_is_reported_without_a_password_prompt(
    keys: KeyDir, tmp_path: Path
) -> None:
    locked = tmp_path / "locked.key"
    key = load_pem_private_key(keys.key.read_bytes(), None)
    form = Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    locked.write_bytes(key.private_bytes(*form))

    assert "not an unencrypted private key" in error_of(keys.certificate, locked)


def test_an_expired_certificate_is_reported(keys: KeyDir) -> None:
    later = datetime.now(UTC) + timedelta(days=2)

    with pytest.raises(ConfigError, match="expired on"):
        check_tls_files(str(keys.certificate), str(keys.key), "", later)


def test_an_unreadable_file_is_reported(keys: KeyDir, tmp_path: Path) -> None:
    assert f"tls_key: cannot read {tmp_path}" in error_of(keys.certificate, tmp_path)


def test_settings_with_invalid_files_are_refused_at_load(keys: KeyDir, other_keys: KeyDir) -> None:
    settings = {"tls_cert": str(keys.certificate), "tls_key": str(other_keys.key)}

    with pytest.raises(ConfigError, match="tls_cert and tls_key: the key in"):
        load_gateway_settings(None, {"RINGFENCE_URL": "ringfence://127.0.0.1:7101"}, settings)


def test_a_reload_keeps_the_workers_while_the_files_do_not_belong_together(
    keys: KeyDir, other_keys: KeyDir, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key, reloads = tmp_path / "key.pem", []
    key.write_bytes(keys.key.read_bytes())
    settings = GatewaySettings(
        cluster="ringfence://127.0.0.1:7101",
        tls_cert=str(keys.certificate),
        tls_key=str(key),
    )

    for content in (other_keys.key.read_bytes(), keys.key.read_bytes()):
        key.write_bytes(content)
        reload_if_valid(lambda *_: reloads.append(content), settings, 1, None)  # noqa: B023

    assert reloads == [keys.key.read_bytes()]
    assert "TLS files not reloaded" in caplog.text
