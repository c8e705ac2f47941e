from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store

from ringfence.errors import ConfigError
from ringfence.transport.tls.certificate_authority import issue, new_authority, self_signed
from ringfence.transport.tls.certificates import NODE_NAME, check_server_tls

NOW = datetime(2030, 5, 1, 12, 0, tzinfo=UTC)


def load(pem: bytes) -> x509.Certificate:
    return x509.load_pem_x509_certificate(pem)


def test_an_issued_certificate_passes_a_strict_verifier() -> None:
    ca, ca_key = new_authority(NOW, 365)
    certificate, _ = issue(ca, ca_key, ["limits.example"], ["10.0.0.1", "2001:db8::1"], NOW, 90)

    for name in (NODE_NAME, "limits.example"):
        verifier = (
            PolicyBuilder()
            .store(Store([load(ca)]))
            .time(NOW + timedelta(days=1))
            .build_server_verifier(x509.DNSName(name))
        )
        assert len(verifier.verify(load(certificate), [])) == 2


def test_a_certificate_has_each_name_and_address_once() -> None:
    ca, ca_key = new_authority(NOW, 365)
    pem, _ = issue(ca, ca_key, [NODE_NAME, "a.example", "a.example"], ["10.0.0.1"] * 2, NOW, 90)

    names = load(pem).extensions.get_extension_for_class(x509.SubjectAlternativeName).value

    assert names.get_values_for_type(x509.DNSName) == [NODE_NAME, "a.example"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]


def test_a_node_certificate_may_serve_but_sign_nothing() -> None:
    ca, ca_key = new_authority(NOW, 365)
    pem, _ = issue(ca, ca_key, [], [], NOW, 90)
    extensions = load(pem).extensions

    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    usages = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usages) == [ExtendedKeyUsageOID.SERVER_AUTH]


def test_keys_are_unencrypted_and_belong_to_their_certificates() -> None:
    ca, ca_key = new_authority(NOW, 365)
    _, key = issue(ca, ca_key, [], [], NOW, 90)

    assert key.startswith(b"-----BEGIN PRIVATE KEY-----")
    assert load_pem_private_key(ca_key, None).public_key() == load(ca).public_key()
    check_server_tls(self_signed(NOW), NOW, "certificate", "key")


def test_certificates_last_as_long_as_asked() -> None:
    ca, ca_key = new_authority(NOW, 365)
    pem, _ = issue(ca, ca_key, [], [], NOW, 1.5)

    assert load(ca).not_valid_after_utc == NOW + timedelta(days=365)
    assert load(pem).not_valid_after_utc == NOW + timedelta(hours=36)
    assert load(pem).not_valid_before_utc < NOW


@pytest.mark.parametrize(
    ("names", "addresses", "message"),
    [([], ["limits.example"], "must be an IP address"), (["a..b"], [], "must be a host name")],
)
def test_a_name_in_the_wrong_place_is_refused(
    names: list[str], addresses: list[str], message: str
) -> None:
    ca, ca_key = new_authority(NOW, 365)

    with pytest.raises(ConfigError, match=message):
        issue(ca, ca_key, names, addresses, NOW, 90)
