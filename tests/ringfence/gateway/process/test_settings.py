"""Settings of the gateway, and the errors for invalid ones."""

from pathlib import Path

import pytest

from ringfence.errors import ConfigError
from ringfence.gateway import GatewaySettings, load_gateway_settings

CLUSTER = {"RINGFENCE_URL": "ringfence://127.0.0.1:7101"}


def test_flags_override_the_environment_which_overrides_the_file(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text('domain = "file"\nworkers = 2\nmax_checks = 3\n', "utf-8")
    environment = CLUSTER | {"RINGFENCE_GATEWAY_DOMAIN": "env", "RINGFENCE_GATEWAY_WORKERS": "4"}

    settings = load_gateway_settings(path, environment, {"domain": "flag", "workers": None})

    assert (settings.domain, settings.workers, settings.max_checks) == ("flag", 4, 3)
    assert settings.cluster == CLUSTER["RINGFENCE_URL"]


def test_lists_in_the_environment_are_separated_by_commas() -> None:
    environment = CLUSTER | {"RINGFENCE_GATEWAY_AUTH": "path+client=ip, client=header:x-key"}

    assert load_gateway_settings(None, environment).auth == [
        "path+client=ip",
        "client=header:x-key",
    ]


def test_relative_paths_start_at_the_folder_of_the_settings_file(tmp_path: Path) -> None:
    (tmp_path / "tokens.toml").write_text("", "utf-8")
    path = tmp_path / "gateway.toml"
    path.write_text('tokens = "tokens.toml"\n', "utf-8")

    assert load_gateway_settings(path, CLUSTER).tokens == str(tmp_path / "tokens.toml")


def test_grpc_can_be_disabled() -> None:
    assert load_gateway_settings(None, CLUSTER, {"grpc": ""}).grpc_at is None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"cluster": "redis://x"}, "ringfence://"),
        ({"listen": "127.0.0.1:0"}, "listen must have a port from 1"),
        ({"listen": "foo"}, "listen must have a port, got 'foo'; write HOST:PORT"),
        ({"grpc": "7180"}, "listen and grpc must have different ports"),
        ({"listen": "0.0.0.0:7181"}, "got listen = 0.0.0.0:7181 and grpc = 127.0.0.1:7181"),
        ({"listen": "127.0.0.1"}, "listen must have a port, got '127.0.0.1'"),
        ({"listen": "::1"}, "listen must have a port, got '::1'"),
        ({"grpc": "[::1]"}, "grpc must have a port, got '[::1]'"),
        ({"listen": "0.0.0.0:80"}, "set tokens"),
        ({"grpc": "[::]:81"}, "set tokens"),
        ({"deny_status": 500}, "deny_status must be 429 or 403, got 500"),
        ({"headers": "all"}, "headers must be one of ietf, x, both, none, got 'all'"),
        ({"grpc_headers": "boht"}, "got 'boht'; did you mean 'both'?"),
        ({"override_algorithm": "foo"}, "override_algorithm must be one of "),
        ({"auth": ["client=ipp"]}, "did you mean 'ip'"),
        (
            {"auth": ["client=user"]},
            "auth: key must be one of ip, path, method, host and header:NAME, got 'user'",
        ),
        (
            {"auth": ["route"]},
            "header:NAME, got 'route'; a proxy can send other values in a header",
        ),
        ({"auth": ["path+user_or_ip"]}, "header:NAME, got 'user_or_ip'"),
        (
            {"trusted_proxies": ["everybody"]},
            "trusted_proxies must be addresses or networks, got 'everybody'",
        ),
        ({"ipv6_prefix": 0}, "ipv6_prefix"),
        ({"address_header": "via"}, "proxy header"),
        ({"workers": 0}, "workers must be from 1 to 64, got 0"),
        ({"hedge_after": 0.25}, "hedge_after must be at most nine tenths of deadline, got 0.25"),
        ({"tls_cert": "cert.pem"}, "must be set together"),
        ({"tls_client_ca": "ca.pem"}, "tls_client_ca needs a certificate"),
        ({"tokens": "/nowhere"}, "no such file"),
        ({"tokens": f"/{'x' * 300}"}, "x: File name too long; let the gateway's user read it"),
        ({"domains": "api"}, "did you mean 'domain'"),
    ],
)
def test_the_error_for_an_invalid_setting_names_it_and_the_remedy(
    settings: dict[str, object], words: str
) -> None:
    with pytest.raises(ConfigError, match="flags and environment") as caught:
        load_gateway_settings(None, CLUSTER, settings)

    assert words in str(caught.value)


def test_a_variable_that_sets_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown variable RINGFENCE_GATEWAY_DOMAINS"):
        load_gateway_settings(None, CLUSTER | {"RINGFENCE_GATEWAY_DOMAINS": "x"})


def test_the_error_of_a_variable_lists_its_valid_values() -> None:
    with pytest.raises(ConfigError, match="HEADERS must be one of ietf, x, both, none, got 'all'"):
        load_gateway_settings(None, CLUSTER | {"RINGFENCE_GATEWAY_HEADERS": "all"})


def test_an_error_names_a_file_that_is_not_toml(tmp_path: Path) -> None:
    path = tmp_path / "gateway.toml"
    path.write_text("domain = [", "utf-8")

    with pytest.raises(ConfigError, match="must be TOML, got: "):
        load_gateway_settings(path, CLUSTER)


def test_every_setting_is_documented() -> None:
    guides = Path(__file__).parents[4] / "docs" / "guides"
    text = "".join((guides / page).read_text("utf-8") for page in ("gateway.md", "envoy.md"))

    missing = [name for name in GatewaySettings.__struct_fields__ if f"`{name}`" not in text]

    assert missing == []
