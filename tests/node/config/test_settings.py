import json
import re
import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from node.config.discovery import parse_seed
from node.config.settings import NodeSettings, load_settings
from node.serve import _transport_settings
from ringfence.errors import ConfigError
from ringfence.limiter import Algorithm

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "node-settings.md").read_text("utf-8")
NODE_TOML = """
name = "b"
listen = "127.0.0.1:7102"
join = ["127.0.0.1:7101"]
zone = "north"
weight = 2
rules = "rules"
max_keys = 5
"""


def load(
    directory: Path,
    text: str = NODE_TOML,
    environment: Mapping[str, str] | None = None,
    **flags: object,
) -> NodeSettings:
    path = directory / "node.toml"
    path.write_text(text, "utf-8")
    return load_settings(path, environment or {}, flags)


def error_of(
    directory: Path, text: str, environment: Mapping[str, str] | None = None, **flags: object
) -> str:
    with pytest.raises(ConfigError) as caught:
        load(directory, text, environment, **flags)
    return str(caught.value)


def pod_environment(**reported: str) -> dict[str, str]:
    return {"POD_NAME": "ringfence-0", "POD_IP": "10.1.2.3"} | reported


# Reading


def test_one_node_on_loopback_needs_no_settings() -> None:
    settings = load_settings(None, {})

    assert settings.listen_at == settings.advertise_at == ("127.0.0.1", 7101)
    assert settings.name == f"{socket.gethostname()}-7101"
    assert settings.join == []
    assert settings.cluster == "ringfence"
    assert settings.max_bytes == 0
    assert (settings.member.datacenter, settings.member.zone) == ("dc1", "")
    assert not settings.is_beyond_loopback


def test_the_page_of_node_settings_states_the_defaults() -> None:
    def text(value: object) -> str:
        if isinstance(value, float) and value.is_integer():
            return str(int(value))
        return "none" if value in ("", []) else json.dumps(value).strip('"')

    stated = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", PAGE, re.MULTILINE))
    defaults = msgspec.structs.asdict(load_settings(None, {}))
    computed = {"name", "advertise", "max_bytes"}

    assert stated.keys() == defaults.keys()
    assert {name: each.strip("`") for name, each in stated.items() if name not in computed} == {
        name: text(value) for name, value in defaults.items() if name not in computed
    }


def test_two_nodes_on_one_host_have_different_default_names() -> None:
    one, other = (load_settings(None, {}, {"listen": f"127.0.0.1:{port}"}) for port in (1, 2))

    assert one.name != other.name


def test_a_file_can_set_identity_and_seeds_of_a_node(tmp_path: Path) -> None:
    settings = load(tmp_path)

    assert settings.listen_at == ("127.0.0.1", 7102)
    assert settings.join == ["127.0.0.1:7101"]
    assert (settings.member.name, settings.member.zone) == ("b", "north")
    assert settings.member.weight == 2.0
    assert type(settings.member.weight) is float  # the wire format needs a float


def test_settings_that_the_file_leaves_out_have_their_defaults(tmp_path: Path) -> None:
    settings = load(tmp_path)

    assert settings.default_algorithm is Algorithm.SLIDING_WINDOW
    assert settings.forward_timeout == 0.4
    assert not settings.merge_domains


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    settings = load(tmp_path, NODE_TOML + 'keys = "secret/keys"')

    assert settings.rules == str(tmp_path / "rules")
    assert settings.keys == str(tmp_path / "secret" / "keys")


def test_absolute_paths_are_unchanged(tmp_path: Path) -> None:
    assert load(tmp_path, NODE_TOML + 'keys = "/etc/ringfence"').keys == "/etc/ringfence"


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    environment = {
        "RINGFENCE_NODE_NAME": "c",
        "RINGFENCE_NODE_JOIN": "127.0.0.1:1, dns:localhost:2,",
        "RINGFENCE_NODE_WEIGHT": "0.5",
        "RINGFENCE_NODE_MAX_KEYS": "7",
        "RINGFENCE_NODE_MERGE_DOMAINS": "true",
        "RINGFENCE_NODE_FORWARD_TIMEOUT": "0.5",
        "RINGFENCE_NODE_DEFAULT_ALGORITHM": "token_bucket",
        "RINGFENCE_NODE_RULES": "elsewhere",
        "RINGFENCE_URL": "not ours",
    }

    settings = load(tmp_path, NODE_TOML, environment)

    assert settings.name == "c"
    assert settings.join == ["127.0.0.1:1", "dns:localhost:2"]
    assert settings.weight == 0.5
    assert settings.max_keys == 7
    assert settings.merge_domains
    assert settings.forward_timeout == 0.5
    assert settings.default_algorithm is Algorithm.TOKEN_BUCKET
    assert settings.rules == "elsewhere"  # relative to the working directory of the command


def test_flags_override_the_environment_and_absent_flags_change_nothing(tmp_path: Path) -> None:
    environment = {"RINGFENCE_NODE_NAME": "a", "RINGFENCE_NODE_RULES": "theirs"}

    settings = load(tmp_path, NODE_TOML, environment, name="c", rules=None, join=[], weight=None)

    assert settings.name == "c"
    assert settings.rules == "theirs"
    assert settings.join == ["127.0.0.1:7101"]
    assert settings.weight == 2


@pytest.mark.parametrize(
    "seed",
    ["localhost:7101", "[::1]:7101", "dns:nodes.example.org:7101", "srv:_ringfence._udp.nodes"],
)
def test_seeds_can_be_addresses_names_and_service_records(tmp_path: Path, seed: str) -> None:
    assert load(tmp_path, NODE_TOML, join=[seed]).join == [seed]


def test_the_listen_address_may_differ_from_the_advertised_address(tmp_path: Path) -> None:
    settings = load(
        tmp_path, NODE_TOML, listen="0.0.0.0:9000", advertise="node.example.org:7101", keys="keys"
    )

    assert settings.listen_at == ("0.0.0.0", 9000)
    assert settings.advertise_at == ("node.example.org", 7101)


# In a pod


def test_a_pod_takes_its_name_and_address_from_kubernetes() -> None:
    settings = load_settings(None, pod_environment(), {"listen": "0.0.0.0:7200", "keys": "keys"})

    assert settings.name == "ringfence-0"
    assert settings.advertise_at == ("10.1.2.3", 7200)


def test_a_pod_in_an_ipv6_network_advertises_its_ipv6_address() -> None:
    environment = pod_environment(POD_IP="fd00::17")

    settings = load_settings(None, environment, {"listen": "[::]:7200", "keys": "keys"})

    assert settings.advertise_at == ("fd00::17", 7200)


def test_explicit_settings_override_kubernetes_variables(tmp_path: Path) -> None:
    settings = load(tmp_path, NODE_TOML, pod_environment())

    assert settings.name == "b"
    assert settings.advertise_at == ("127.0.0.1", 7102)


# Rejected settings


def test_the_error_for_a_missing_file_names_it_and_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: no such file; .*--config"):
        load_settings(tmp_path / "nowhere.toml", {})


def test_a_directory_instead_of_a_file_is_named_in_the_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(tmp_path, {})


def test_an_error_names_the_line_that_is_not_toml(tmp_path: Path) -> None:
    message = error_of(tmp_path, "name = a\n")

    assert "node.toml: must be TOML, got: " in message
    assert "line 1" in message


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ('ruels = "x"', ["'ruels'", "did you mean 'rules'"]),
        ("max_kyes = 3", ["'max_kyes'", "did you mean 'max_keys'"]),
        ('joins = ["127.0.0.1:7101"]', ["'joins'", "did you mean 'join'"]),
        ("quux = 3", ["'quux'", "use one of: ", "drain_timeout"]),
    ],
)
def test_the_error_for_an_unknown_name_suggests_a_similar_one(
    tmp_path: Path, line: str, parts: list[str]
) -> None:
    message = error_of(tmp_path, NODE_TOML + line)

    assert "node.toml: unknown setting" in message
    for part in parts:
        assert part in message


def test_the_error_for_an_unknown_variable_suggests_a_similar_one(tmp_path: Path) -> None:
    message = error_of(tmp_path, NODE_TOML, {"RINGFENCE_NODE_RULE": "x"})

    assert "unknown variable RINGFENCE_NODE_RULE" in message
    assert "did you mean 'RINGFENCE_NODE_RULES'" in message


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RINGFENCE_NODE_MAX_KEYS": "many"}, "MAX_KEYS must be a whole number, got 'many'"),
        ({"RINGFENCE_NODE_DEFAULT_ALGORITHM": "gcra"}, "token_bucket"),
    ],
)
def test_an_error_names_the_invalid_environment_variable(
    tmp_path: Path, environment: dict[str, str], message: str
) -> None:
    assert message in error_of(tmp_path, NODE_TOML, environment)


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("forward_timeout", 0.001, 60),
        ("drain_timeout", 0.001, 60),
        ("reload_interval", 0, 3600),
        ("processes", 1, 256),
        ("max_connections", 16, None),
        ("max_connections_per_address", 1, None),
        ("max_connections_per_token", 1, None),
        ("max_keys", 1, None),
        ("max_bytes", 0, None),
    ],
)
def test_a_setting_has_a_smallest_and_a_largest_value(
    tmp_path: Path, name: str, least: float, most: float | None
) -> None:
    other_lines = [line for line in NODE_TOML.splitlines() if not line.startswith(name)]

    def text(value: float) -> str:
        return "\n".join([*other_lines, f"{name} = {value}"])

    step = 1 if isinstance(least, int) else 0.0001
    assert getattr(load(tmp_path, text(least)), name) == least
    assert name in error_of(tmp_path, text(least - step))
    if most is not None:
        assert getattr(load(tmp_path, text(most)), name) == most
        assert f"from {least} to {most}" in error_of(tmp_path, text(most + step))


def test_the_text_settings_of_a_member_have_at_most_500_bytes(tmp_path: Path) -> None:
    def text(length: int) -> str:
        return NODE_TOML + f'datacenter = "{"d" * 240}"\nadvertise = "{"h" * length}:1"'

    assert load(tmp_path, text(500 - 240 - len("bnorth"))).datacenter == "d" * 240
    assert "got 501" in error_of(tmp_path, text(501 - 240 - len("bnorth")))


def test_settings_cannot_be_changed(tmp_path: Path) -> None:
    with pytest.raises(AttributeError):
        load(tmp_path).name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ('max_keys = "many"', ["max_keys must be a whole number, got text"]),
        ("max_keys = 0", ["max_keys must be at least 1"]),
        (
            "max_keys = 0\nprocesses = 900",
            ["processes must be from 1 to 256, got 900", "max_keys must be at least 1"],
        ),
        ("processes = 0", ["processes must be from 1 to 256"]),
        ("forward_timeout = 0", ["forward_timeout must be from 0.001 to 60"]),
        ("forward_timeout = nan", ["forward_timeout must be from 0.001 to 60"]),
        ("drain_timeout = 61", ["drain_timeout must be from 0.001 to 60"]),
        ("reload_interval = -1", ["reload_interval must be from 0"]),
        ('default_algorithm = "gcra"', ["default_algorithm", "'gcra'", "token_bucket"]),
        ('listen = "127.0.0.1:x"', ["listen", "port must be a number"]),
        ('listen = "127.0.0.1:0"', ["listen", "port"]),
        ('advertise = "a:b:c"', ["advertise: address"]),
        ('advertise = "127.0.0.1:0"', ["advertise must have a port"]),
        ('join = "127.0.0.1:7101"', ["join must be a list, got text"]),
        ('join = ["127.0.0.1:x"]', ["join '127.0.0.1:x'", "dns:NAME:PORT", "srv:"]),
        ('join = ["127.0.0.1:0"]', ["join must have a port", "'127.0.0.1:0'"]),
        ('join = ["srv:nodes:7101"]', ["join 'srv:nodes:7101'", "must have no port"]),
        ('join = ["srv:"]', ["join 'srv:'", "must have a name, got none"]),
        ("weight = 9", ["weight of 'b' is 9.0; use 0.25 to 4"]),
        ('datacenter = ""', ["datacenter of a member is empty"]),
        ('cluster = ""', ["cluster must not be empty"]),
        (f'zone = "{"z" * 256}"', ["zone must have at most 255"]),
        ('datacenter = "dc\\u0007"', ["datacenter must have at most", "printable"]),
        (
            f'datacenter = "{"d" * 250}"\nzone = "{"ö" * 200}"',
            ["at most 500 bytes together, got 660"],
        ),
    ],
)
def test_an_invalid_value_is_reported_with_the_name_of_its_setting(
    tmp_path: Path, line: str, parts: list[str]
) -> None:
    names = [each.partition(" = ")[0] for each in line.splitlines()]
    other_lines = [each for each in NODE_TOML.splitlines() if each.partition(" = ")[0] not in names]

    message = error_of(tmp_path, "\n".join([*other_lines, line]))

    assert "node.toml: " in message
    for part in parts:
        assert part in message


# Keys and reachable addresses


@pytest.mark.parametrize("listen", ["0.0.0.0:7101", "[::]:7101", "10.0.0.1:7101", "example.org:1"])
def test_a_node_beyond_loopback_without_keys_is_refused_with_a_remedy(
    tmp_path: Path, listen: str
) -> None:
    message = error_of(tmp_path, NODE_TOML, listen=listen)

    assert "keys must be set when listen is beyond loopback, got listen = " in message
    assert "ringfence keys new" in message
    assert listen in message


@pytest.mark.parametrize("listen", ["127.0.0.1:7101", "[::1]:7101", "localhost:7101"])
def test_on_loopback_a_node_needs_no_keys(tmp_path: Path, listen: str) -> None:
    assert not load(tmp_path, NODE_TOML, listen=listen).is_beyond_loopback


@pytest.mark.parametrize("listen", ["0.0.0.0:7101", "[::]:7101"])
def test_a_node_that_listens_on_all_addresses_needs_an_advertised_address(
    tmp_path: Path, listen: str
) -> None:
    message = error_of(tmp_path, NODE_TOML, listen=listen, keys="keys")

    assert "listen must be an address that others can reach, got " in message
    assert "set advertise" in message


def test_the_unspecified_address_cannot_be_advertised(tmp_path: Path) -> None:
    message = error_of(tmp_path, NODE_TOML, advertise="0.0.0.0:7101")

    assert "advertise must be an address that others can reach, got 0.0.0.0" in message


def test_a_node_on_loopback_cannot_join_others_elsewhere(tmp_path: Path) -> None:
    message = error_of(tmp_path, NODE_TOML, join=["10.0.0.1:7101"])

    assert "listen must be beyond loopback to join '10.0.0.1:7101'" in message
    assert "set listen" in message


# The admin port


def test_the_admin_port_is_off_unless_it_is_configured(tmp_path: Path) -> None:
    assert load_settings(None, {}).http_at is None
    assert load(tmp_path, http="127.0.0.1:7180").http_at == ("127.0.0.1", 7180)
    assert load(tmp_path, http="[::1]:0").http_at == ("::1", 0)
    assert load(tmp_path, environment={"RINGFENCE_NODE_HTTP": "localhost:7180"}).http_at


@pytest.mark.parametrize("address", ["0.0.0.0:7180", "10.0.0.1:7180", "[::]:7180", "node-a:7180"])
def test_an_admin_port_beyond_loopback_needs_keys(tmp_path: Path, address: str) -> None:
    reported = error_of(tmp_path, NODE_TOML, http=address)

    assert "keys must be set when http is beyond loopback, got http = " in reported
    assert "ringfence keys new" in reported
    assert load(tmp_path, http=address, keys="keys").http_at


@pytest.mark.parametrize(
    ("written", "address"),
    [
        ("7199", ("127.0.0.1", 7199)),
        ("127.0.0.1", ("127.0.0.1", 7190)),
        ("::1", ("::1", 7190)),
        ("localhost", ("localhost", 7190)),
    ],
)
def test_a_partial_address_is_completed_with_defaults(
    tmp_path: Path, written: str, address: tuple[str, int]
) -> None:
    assert load(tmp_path, http=written).http_at == address


def test_a_port_without_a_host_means_loopback_except_in_advertise(tmp_path: Path) -> None:
    settings = load(tmp_path, listen="7199", join=["7101"], name="a")

    assert settings.listen_at == settings.advertise_at == ("127.0.0.1", 7199)
    assert parse_seed(settings.join[0]).name == "127.0.0.1"
    assert "advertise must be HOST:PORT, got '7199'" in error_of(
        tmp_path, NODE_TOML, advertise="7199"
    )


@pytest.mark.parametrize("address", ["127.0.0.1:x", ":7180", "127.0.0.1:99999"])
def test_an_admin_address_must_have_a_valid_port(tmp_path: Path, address: str) -> None:
    assert "http: " in error_of(tmp_path, NODE_TOML, http=address)


def test_the_environment_switches_the_fast_path_off() -> None:
    settings = load_settings(None, {"RINGFENCE_NODE_USE_FAST_PATH": "false"})

    assert not _transport_settings(settings).use_fast_path
    assert _transport_settings(load_settings(None, {})).use_fast_path
