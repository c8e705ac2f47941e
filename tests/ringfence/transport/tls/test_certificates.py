from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ringfence.errors import ConfigError
from ringfence.transport.tls.certificate_authority import issue, new_authority, self_signed
from ringfence.transport.tls.certificates import NODE_NAME, load_client_tls, load_server_tls

NOW = datetime(2030, 5, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    ca, ca_key = new_authority(NOW, 30)
    certificate, key = issue(ca, ca_key, [], [], NOW, 10)
    for name, pem in {"ca": ca, "node": certificate, "node.key": key}.items():
        (tmp_path / name).write_bytes(pem)
    (tmp_path / "other.key").write_bytes(self_signed(NOW).key_pem)
    (tmp_path / "words").write_text("not a certificate")
    return tmp_path


def test_valid_files_are_loaded(files: Path) -> None:
    server = load_server_tls(files / "node", files / "node.key", NOW)
    client = load_client_tls(files / "ca", NOW)

    assert server.certificate_pem == (files / "node").read_bytes()
    assert (client.server_name, client.verify) == (NODE_NAME, True)


def test_the_text_of_tls_files_does_not_show_the_private_key(files: Path) -> None:
    server = load_server_tls(files / "node", files / "node.key", NOW)

    assert "PRIVATE" not in repr(server)


@pytest.mark.parametrize(
    ("certificate", "key", "message"),
    [
        ("absent", "node.key", r"cannot read the node's certificate .*absent: No such file"),
        ("node", "absent", r"cannot read the node's key .*absent: No such file"),
        ("words", "node.key", r"words holds no certificate in PEM form"),
        ("node", "words", r"words is not an unencrypted private key in PEM form"),
        ("node", "other.key", r"key in .*other.key does not belong to the certificate in .*node"),
    ],
)
def test_the_error_for_a_wrong_file_states_the_reason(
    files: Path, certificate: str, key: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load_server_tls(files / certificate, files / key, NOW)


def test_the_error_for_an_expired_certificate_states_its_date_and_the_remedy(files: Path) -> None:
    with pytest.raises(ConfigError, match=r"expired on 2030-05-11 12:00 UTC.*ringfence keys renew"):
        load_server_tls(files / "node", files / "node.key", NOW + timedelta(days=11))


def test_the_error_for_a_certificate_from_the_future_states_both_times(files: Path) -> None:
    with pytest.raises(ConfigError, match=r"valid only from 2030-05-01.*host shows 2030-04-30"):
        load_server_tls(files / "node", files / "node.key", NOW - timedelta(days=1))


def test_the_error_for_a_wrong_authority_file_states_the_reason(files: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the CA certificate"):
        load_client_tls(files / "absent", NOW)
    with pytest.raises(ConfigError, match="holds no certificate"):
        load_client_tls(files / "words", NOW)
    with pytest.raises(ConfigError, match="expired on 2030-05-31"):
        load_client_tls(files / "ca", NOW + timedelta(days=31))
