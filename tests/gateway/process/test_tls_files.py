"""Certificates that are wrong are told before anything is served."""

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
from ringfence.gateway.process.tls_files import check_tls_files


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> KeyDir:
    return made(tmp_path_factory.mktemp("keys"))


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> KeyDir:
    return made(tmp_path_factory.mktemp("others"))


def made(directory: Path) -> KeyDir:
    write_keys(directory, (), ("127.0.0.1",), ("app:check",), 1)
    return KeyDir(directory)


def complaint(certificate: Path, key: Path, client_ca: Path | str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        check_tls_files(str(certificate), str(key), str(client_ca), datetime.now(UTC))
    return str(caught.value)


def test_files_that_are_right_pass(keys: KeyDir) -> None:
    now = datetime.now(UTC)

    check_tls_files(str(keys.certificate), str(keys.key), str(keys.ca), now)
    check_tls_files(str(keys.certificate), str(keys.key), "", now)


def test_files_that_hold_something_else_are_named(keys: KeyDir, tmp_path: Path) -> None:
    odd = tmp_path / "odd.pem"
    odd.write_text("rubbish", "utf-8")

    assert f"{odd} holds no certificate" in complaint(odd, keys.key)
    assert f"{odd} is not an unencrypted private key" in complaint(keys.certificate, odd)
    told = complaint(keys.certificate, keys.key, odd)
    assert told.startswith(f"tls_client_ca: {odd} holds no certificate")


def test_an_authority_in_broken_pem_is_named(keys: KeyDir, tmp_path: Path) -> None:
    odd = tmp_path / "odd.pem"
    odd.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "utf-8")

    assert "tls_client_ca" in complaint(keys.certificate, keys.key, odd)


def test_a_key_of_another_certificate_is_told(keys: KeyDir, others: KeyDir) -> None:
    told = complaint(keys.certificate, others.key)

    assert f"the key in {others.key} does not belong to the certificate in" in told


def test_a_key_with_a_password_is_told_and_nobody_is_asked_for_it(
    keys: KeyDir, tmp_path: Path
) -> None:
    locked = tmp_path / "locked.key"
    key = load_pem_private_key(keys.key.read_bytes(), None)
    form = Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret")
    locked.write_bytes(key.private_bytes(*form))

    assert "not an unencrypted private key" in complaint(keys.certificate, locked)


def test_a_certificate_that_has_expired_is_told(keys: KeyDir) -> None:
    later = datetime.now(UTC) + timedelta(days=2)

    with pytest.raises(ConfigError, match="expired on"):
        check_tls_files(str(keys.certificate), str(keys.key), "", later)


def test_a_file_that_cannot_be_read_is_told(keys: KeyDir, tmp_path: Path) -> None:
    assert f"tls_key: cannot read {tmp_path}" in complaint(keys.certificate, tmp_path)


def test_settings_with_wrong_files_are_refused_at_once(keys: KeyDir, others: KeyDir) -> None:
    told = {"tls_cert": str(keys.certificate), "tls_key": str(others.key)}

    with pytest.raises(ConfigError, match="tls_cert and tls_key: the key in"):
        load_gateway_settings(None, {"RINGFENCE_URL": "ringfence://127.0.0.1:7101"}, told)
