"""A gateway that demands client certificates at both ports."""

import ssl
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from envoy.service.ratelimit.v3 import rls_pb2, rls_pb2_grpc

from node.config.key_files import write_keys
from tests.node.end_to_end.test_serve import TIMEOUT, started
from tests.ringfence.gateway.processes import free_tcp_ports, until
from tests.ringfence.gateway.test_gateway_process import should_rate_limit


def write_client_certificate(keys: Path) -> tuple[Path, Path]:
    """Write a client certificate of the authority in `keys`; return its path and its key's path."""
    ca = x509.load_pem_x509_certificate((keys / "ca.pem").read_bytes())
    ca_key = serialization.load_pem_private_key((keys / "ca.key").read_bytes(), None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a caller")]))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(ca_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    paths = keys / "caller.pem", keys / "caller.key"
    paths[0].write_bytes(certificate.public_bytes(pem))
    paths[1].write_bytes(key.private_bytes(pem, pkcs8, plain))
    return paths


def test_with_mutual_tls_both_ports_refuse_clients_without_a_certificate(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    write_keys(keys, (), ("127.0.0.1",), ("app:check",), 1)
    http, grpc_port = free_tcp_ports(2)
    config = tmp_path / "gateway.toml"
    config.write_text(
        f'listen = "127.0.0.1:{http}"\ngrpc = "127.0.0.1:{grpc_port}"\ndeadline = 2\n'
        'tls_cert = "keys/node.pem"\ntls_key = "keys/node.key"\ntls_client_ca = "keys/ca.pem"\n',
        "utf-8",
    )
    flags = {"a": ["--name", "a", "--keys", str(keys), "--gateway-config", str(config)]}
    ca, pair = (keys / "ca.pem").read_bytes(), write_client_certificate(keys)
    chain, key = [each.read_bytes() for each in pair]

    def is_ready(context: ssl.SSLContext) -> bool:
        url = f"https://127.0.0.1:{http}/readyz"
        try:
            with urllib.request.urlopen(url, context=context, timeout=TIMEOUT) as response:
                return bool(response.status == 200)
        except OSError:
            return False

    without_certificate = ssl.create_default_context(cafile=str(keys / "ca.pem"))
    with_certificate = ssl.create_default_context(cafile=str(keys / "ca.pem"))
    with_certificate.load_cert_chain(*pair)
    with started(tmp_path, flags):
        until(lambda: is_ready(with_certificate))
        assert not is_ready(without_certificate)
        reset = urllib.request.Request(
            f"https://127.0.0.1:{http}/v1/reset",
            b'{"domain": "api", "descriptors": [{"client": "x"}]}',
            {"Content-Type": "application/json"},
        )
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(reset, context=with_certificate, timeout=TIMEOUT)

        credentials = grpc.ssl_channel_credentials(ca, key, chain)
        with grpc.secure_channel(f"127.0.0.1:{grpc_port}", credentials) as channel:
            stub = rls_pb2_grpc.RateLimitServiceStub(channel)
            answer = stub.ShouldRateLimit(should_rate_limit("x"), timeout=TIMEOUT)
            assert answer.overall_code == rls_pb2.RateLimitResponse.OK
        with grpc.secure_channel(
            f"127.0.0.1:{grpc_port}", grpc.ssl_channel_credentials(ca)
        ) as channel:
            stub = rls_pb2_grpc.RateLimitServiceStub(channel)
            with pytest.raises(grpc.RpcError) as refused:
                stub.ShouldRateLimit(should_rate_limit("x"), timeout=TIMEOUT)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
