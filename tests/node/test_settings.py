from collections.abc import Mapping
from pathlib import Path

import pytest

from node.settings import NodeSettings, load_settings
from ringfence.errors import ConfigError
from ringfence.limiter import Algorithm

THREE = """
name = "a"
rules = "rules"
max_keys = 5

[[members]]
name = "a"
address = "127.0.0.1:7101"

[[members]]
name = "b"
address = "127.0.0.1:7102"
zone = "north"
weight = 2
"""
BEYOND = """
name = "a"

[[members]]
name = "a"
address = "10.0.0.1:7101"
"""


def load(
    directory: Path,
    text: str = THREE,
    environment: Mapping[str, str] | None = None,
    **flags: str | None,
) -> NodeSettings:
    path = directory / "cluster.toml"
    path.write_text(text, "utf-8")
    return load_settings(path, environment or {}, flags)


def refusal(
    directory: Path, text: str, environment: Mapping[str, str] | None = None, **flags: str
) -> str:
    with pytest.raises(ConfigError) as caught:
        load(directory, text, environment, **flags)
    return str(caught.value)


def at_top(line: str) -> str:
    return f"{line}\n{THREE}"


# What is read


def test_a_file_says_who_the_members_are_and_which_of_them_this_is(tmp_path: Path) -> None:
    settings = load(tmp_path)

    assert [member.name for member in settings.members] == ["a", "b"]
    assert settings.me.at == ("127.0.0.1", 7101)
    assert settings.listen_at == ("127.0.0.1", 7101)
    assert settings.members[1].as_member().weight == 2.0
    assert type(settings.members[1].weight) is float  # as the wire wants it


def test_settings_that_the_file_leaves_out_have_their_defaults(tmp_path: Path) -> None:
    settings = load(tmp_path)

    assert settings.default_algorithm is Algorithm.SLIDING_WINDOW
    assert settings.forward_timeout == 0.25
    assert not settings.merge_domains


def test_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    settings = load(tmp_path, at_top('keys = "secret/keys"'))

    assert settings.rules == str(tmp_path / "rules")
    assert settings.keys == str(tmp_path / "secret" / "keys")


def test_absolute_paths_stay_as_they_are(tmp_path: Path) -> None:
    assert load(tmp_path, at_top('keys = "/etc/ringfence"')).keys == "/etc/ringfence"


def test_the_environment_goes_over_the_file(tmp_path: Path) -> None:
    environment = {
        "RINGFENCE_NODE_NAME": "b",
        "RINGFENCE_NODE_MAX_KEYS": "7",
        "RINGFENCE_NODE_MERGE_DOMAINS": "true",
        "RINGFENCE_NODE_FORWARD_TIMEOUT": "0.5",
        "RINGFENCE_NODE_DEFAULT_ALGORITHM": "token_bucket",
        "RINGFENCE_NODE_RULES": "elsewhere",
        "RINGFENCE_URL": "not ours",
    }

    settings = load(tmp_path, THREE, environment)

    assert settings.name == "b"
    assert settings.max_keys == 7
    assert settings.merge_domains
    assert settings.forward_timeout == 0.5
    assert settings.default_algorithm is Algorithm.TOKEN_BUCKET
    assert settings.rules == "elsewhere"  # relative to where the command runs, as people type it


def test_flags_go_over_the_environment_and_absent_flags_change_nothing(tmp_path: Path) -> None:
    environment = {"RINGFENCE_NODE_NAME": "a", "RINGFENCE_NODE_RULES": "theirs"}

    settings = load(tmp_path, THREE, environment, name="b", rules=None)

    assert settings.name == "b"
    assert settings.rules == "theirs"


def test_members_can_come_from_the_environment_alone() -> None:
    environment = {"RINGFENCE_NODE_MEMBERS": "a=127.0.0.1:7101, b=[::1]:7102"}

    settings = load_settings(None, environment, {"name": "b"})

    assert settings.me.at == ("::1", 7102)


def test_an_address_may_be_bound_that_is_not_the_one_others_reach(tmp_path: Path) -> None:
    settings = load(tmp_path, THREE, listen="127.0.0.2:9000")

    assert settings.listen_at == ("127.0.0.2", 9000)
    assert settings.me.at == ("127.0.0.1", 7101)


# What is refused


def test_a_missing_file_is_named_with_the_mend(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.toml: no such file; .*--config"):
        load_settings(tmp_path / "nowhere.toml", {})


def test_a_directory_in_place_of_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(tmp_path, {})


def test_what_is_not_toml_is_named_with_its_line(tmp_path: Path) -> None:
    message = refusal(tmp_path, "name = a\n")

    assert "cluster.toml: not valid TOML" in message
    assert "line 1" in message


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('ruels = "x"', ["'ruels'", "did you mean 'rules'"]),
        ("max_kyes = 3", ["'max_kyes'", "did you mean 'max_keys'"]),
        ("quux = 3", ["'quux'", "known are", "drain_timeout"]),
    ],
)
def test_an_unknown_name_is_refused_with_what_was_probably_meant(
    tmp_path: Path, line: str, said: list[str]
) -> None:
    message = refusal(tmp_path, at_top(line))

    assert "cluster.toml: there is no setting" in message
    for words in said:
        assert words in message


def test_an_unknown_name_of_a_member_is_compared_with_those_of_members_only(
    tmp_path: Path,
) -> None:
    message = refusal(tmp_path, THREE + 'adress = "x"\n')

    assert "did you mean 'address'" in message
    assert "in members[1]" in message
    assert "max_keys" not in refusal(tmp_path, THREE + "quux = 1\n")


def test_an_unknown_variable_is_refused_with_what_was_probably_meant(tmp_path: Path) -> None:
    message = refusal(tmp_path, THREE, {"RINGFENCE_NODE_RULE": "x"})

    assert "RINGFENCE_NODE_RULE sets nothing" in message
    assert "did you mean 'RINGFENCE_NODE_RULES'" in message


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"RINGFENCE_NODE_MAX_KEYS": "many"}, "MAX_KEYS='many': expected a whole number"),
        ({"RINGFENCE_NODE_MEMBERS": "10.0.0.1:7101"}, "is not NAME=HOST:PORT"),
        ({"RINGFENCE_NODE_DEFAULT_ALGORITHM": "gcra"}, "token_bucket"),
    ],
)
def test_a_variable_that_cannot_be_read_is_named(
    tmp_path: Path, environment: dict[str, str], said: str
) -> None:
    assert said in refusal(tmp_path, THREE, environment)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('max_keys = "many"', ["max_keys: expected a whole number, got text"]),
        ("max_keys = 0", ["max_keys must be at least 1"]),
        ("forward_timeout = 0", ["forward_timeout must be above 0"]),
        ("forward_timeout = nan", ["forward_timeout must be above 0"]),
        ("drain_timeout = 61", ["drain_timeout must be above 0 and at most 60"]),
        ("reload_interval = -1", ["reload_interval must be from 0"]),
        ('default_algorithm = "gcra"', ["default_algorithm", "'gcra'", "token_bucket"]),
        ('listen = "127.0.0.1:x"', ["listen", "port 'x'"]),
        ('listen = "127.0.0.1:0"', ["listen", "port"]),
    ],
)
def test_a_value_that_cannot_work_is_refused_by_name(
    tmp_path: Path, line: str, said: list[str]
) -> None:
    message = refusal(tmp_path, at_top(line).replace("max_keys = 5\n", ""))

    assert "cluster.toml: " in message
    for words in said:
        assert words in message


@pytest.mark.parametrize(
    ("member", "said"),
    [
        ('name = "b"\naddress = "127.0.0.1:7103"', "two members are called 'b'"),
        ('name = "c"\naddress = "127.0.0.1:7102"', "'b' and 'c' have the same address"),
        ('name = "c"\naddress = "127.0.0.1:0"', "'c' has no port"),
        ('name = "c"\naddress = "127.0.0.1:port"', "member 'c': address"),
        ('name = "c"\naddress = "127.0.0.1:7103"\nweight = 9', "weight of 'c'"),
        ('name = ""\naddress = "127.0.0.1:7103"', "name of a member is empty"),
        (f'name = "{"c" * 256}"\naddress = "127.0.0.1:7103"', "longer than 255"),
        ('name = "c"', "members[2]: address is missing"),
        ('name = "c"\naddress = 5', "members[2].address: expected text, got whole number"),
        ('address = "127.0.0.1:7103"', "name"),
    ],
)
def test_a_member_that_cannot_be_is_refused_by_name(tmp_path: Path, member: str, said: str) -> None:
    message = refusal(tmp_path, f"{THREE}\n[[members]]\n{member}\n")

    assert said in message
    assert "cluster.toml" in message


@pytest.mark.parametrize("text", ['name = "a"\n', 'name = "a"\nmembers = []\n'])
def test_a_cluster_without_members_is_refused_with_the_mend(tmp_path: Path, text: str) -> None:
    assert "no members; list every node under [[members]]" in refusal(tmp_path, text)


def test_a_name_that_is_not_among_the_members_is_refused_with_those_that_are(
    tmp_path: Path,
) -> None:
    message = refusal(tmp_path, THREE, name="c")

    assert "'c', which is not among the members a, b; pass --name" in message
    assert "known are" not in message


# Closed by default


@pytest.mark.parametrize("listen", ["0.0.0.0:7101", "[::]:7101", "10.0.0.1:7101", "example.org:1"])
def test_beyond_loopback_a_node_without_keys_is_refused_and_says_what_to_run(
    tmp_path: Path, listen: str
) -> None:
    message = refusal(tmp_path, THREE, listen=listen)

    assert "beyond loopback, without keys" in message
    assert "ringfence keys new" in message


def test_a_members_own_address_beyond_loopback_needs_keys_too(tmp_path: Path) -> None:
    assert "ringfence keys new" in refusal(tmp_path, BEYOND)
    assert load(tmp_path, 'keys = "k"\n' + BEYOND).is_beyond_loopback


@pytest.mark.parametrize("listen", ["127.0.0.1:7101", "[::1]:7101", "localhost:7101"])
def test_on_loopback_a_node_needs_no_keys(tmp_path: Path, listen: str) -> None:
    assert not load(tmp_path, THREE, listen=listen).is_beyond_loopback
