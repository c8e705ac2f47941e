from pathlib import Path

import pytest

from ringfence.client.url import DEFAULT_PORT, Token, parse_address, parse_url
from ringfence.errors import ConfigError

SECRET = "00112233445566778899aabbccddeeff"
TOKEN = f"web.{SECRET}"


def message_of(text):
    with pytest.raises(ConfigError) as caught:
        parse_url(text)
    return str(caught.value)


def test_an_address_names_seeds_token_and_ca():
    url = parse_url(f"ringfence://{TOKEN}@a.example:7101,10.0.0.2:7102?ca=/etc/ringfence/ca.pem")

    assert url.seeds == (("a.example", 7101), ("10.0.0.2", 7102))
    assert url.token == Token("web", bytes.fromhex(SECRET))
    assert url.ca == Path("/etc/ringfence/ca.pem")


def test_all_parts_of_an_address_except_a_host_are_optional():
    url = parse_url("ringfence://localhost")

    assert url.seeds == (("localhost", DEFAULT_PORT),)
    assert (url.token, url.ca, url.datacenter, url.server_name, url.timeout) == (None,) * 5


def test_options_name_the_data_center_the_certificate_and_the_timeout():
    url = parse_url("ringfence://a?datacenter=eu-1&server_name=node.example&timeout=0.25")

    assert (url.datacenter, url.server_name, url.timeout) == ("eu-1", "node.example", 0.25)


@pytest.mark.parametrize("policy", ["allow", "deny", "local"])
def test_an_option_names_the_failure_policy(policy):
    assert parse_url("ringfence://a").on_failure == "allow"
    assert parse_url(f"ringfence://a?on_failure={policy}").on_failure == policy
    assert "on_failure must be allow, deny, local, got 'open'" in message_of(
        "ringfence://a?on_failure=open"
    )


def test_an_address_from_a_file_may_end_in_a_line_break():
    assert parse_url("ringfence://a:1\n").seeds == (("a", 1),)


def test_the_scheme_is_read_in_any_case():
    assert parse_url("RINGFENCE://a:1").seeds == (("a", 1),)


def test_ipv6_seeds_are_in_brackets_beside_others():
    url = parse_url("ringfence://[::1]:7101,a:1,[fe80::2]")

    assert url.seeds == (("::1", 7101), ("a", 1), ("fe80::2", DEFAULT_PORT))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("a", ("a", DEFAULT_PORT)),
        ("7199", ("127.0.0.1", 7199)),
        ("a:1", ("a", 1)),
        (" a:1 ", ("a", 1)),
        ("::1", ("::1", DEFAULT_PORT)),
        ("[::1]", ("::1", DEFAULT_PORT)),
        ("[::1]:0", ("::1", 0)),
        ("[::1:7201]", ("::1:7201", DEFAULT_PORT)),
        ("::7201", ("::7201", DEFAULT_PORT)),
        ("fe80::1:a", ("fe80::1:a", DEFAULT_PORT)),
        ("1:2:3:4:5:6:7:8000", ("1:2:3:4:5:6:7:8000", DEFAULT_PORT)),
    ],
)
def test_a_single_address_is_host_and_port(text, address):
    assert parse_address(text) == address


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("http://a:1", "must begin with ringfence://"),
        ("a:7101", "must begin with ringfence://"),
        ("", "must begin with ringfence://"),
        ("ringfence://", "must name a host"),
        (f"ringfence://{TOKEN}@", "must name a host"),
        ("ringfence://a:1,,b:2", "must name a host"),
        (f"ringfence://a:1,{TOKEN}@b:2", "one token must be before all hosts; write ringfence://T"),
        (f"ringfence://{TOKEN}@a,{TOKEN}@b", "one token must be before all hosts"),
        ("ringfence://:7101", "must name a host"),
        ("ringfence://a/b", "must have no path"),
        ("ringfence://a:port", "port must be a number from 0 to 65535, got 'port'"),
        ("ringfence://a:65536", "port must be a number from 0 to 65535, got '65536'"),
        ("ringfence://a:0", "port must be from 1 to 65535, got 0"),
        ("ringfence://a:1#b", "port must be a number from 0 to 65535, got '1#b'"),
        ("ringfence://[::1]7101", "port must be a number"),
        ("ringfence://::zz:1", "must have an IPv6 address in brackets"),
        ("ringfence://[::1", "must have a closing bracket, got '[::1'"),
        ("ringfence://[::1,a:1", "must have a closing bracket, got '[::1'"),
        ("ringfence://a:1,[::1", "must have a closing bracket, got '[::1'"),
        ("ringfence://::1:7201", "must be in brackets, got '::1:7201'; write [::1]:7201, or"),
        ("ringfence://a:1,fe80::1:7201", "write [fe80::1]:7201, or [fe80::1:7201] if"),
        ("ringfence://a?colour=red", "unknown option 'colour'; known are ca, datacenter"),
        ("ringfence://a?tokenfile=a", "unknown option 'tokenfile'; did you mean 'token_file'?"),
        ("ringfence://a?ca=", "option 'ca' must have a value"),
        ("ringfence://a?timeout=soon", "timeout must be from 0.001 to 60, got 'soon'"),
        ("ringfence://a?timeout=0", "timeout must be from 0.001 to 60, got '0'"),
        ("ringfence://a?timeout=nan", "timeout must be from 0.001 to 60, got 'nan'"),
    ],
)
def test_the_error_of_an_address_names_its_wrong_part(text, words):
    assert words in message_of(text)


@pytest.mark.parametrize(
    "token",
    [
        "web",
        SECRET,
        f".{SECRET}",
        "web.not-hexadecimal",
        "web.0011",
        f"web:{SECRET}",
        "web." + "ab" * 65,
        "x" * 256 + "." + SECRET,
    ],
)
def test_a_malformed_token_is_an_error_with_a_remedy(token):
    assert "ringfence keys new" in message_of(f"ringfence://{token}@a:1")


@pytest.mark.parametrize("digits", [4, 31, 33, 130])
def test_a_token_with_a_wrong_number_of_digits_is_an_error_with_the_number(digits):
    message = message_of(f"ringfence://web.{('0f' * digits)[:digits]}@a:1")

    assert f"from 32 to 128, got {digits}; use the line in a .token file" in message
    assert "0f0f" not in message


def test_a_token_may_be_in_a_file(tmp_path):
    file = tmp_path / "app.token"
    file.write_text(f"{TOKEN}\n", "ascii")

    assert parse_url(f"ringfence://a:1?token_file={file}").token == Token(
        "web", bytes.fromhex(SECRET)
    )
    assert "not both" in message_of(f"ringfence://{TOKEN}@a:1?token_file={file}")
    assert "cannot be read: No such file" in message_of(f"ringfence://a?token_file={file}x")
    file.write_text("rubbish", "ascii")
    assert "ringfence keys new" in message_of(f"ringfence://a:1?token_file={file}")


def test_a_token_does_not_show_its_secret():
    token = parse_url(f"ringfence://{TOKEN}@a:1").token

    assert "web" in repr(token)
    assert SECRET not in repr(token)
    assert repr(bytes.fromhex(SECRET)) not in repr(token)


def test_a_seed_may_be_a_port_alone():
    assert parse_url("ringfence://7102").seeds == (("127.0.0.1", 7102),)
    with pytest.raises(ConfigError, match="port must be a number from 0 to 65535, got '99999'"):
        parse_address("99999")


def test_a_host_without_a_port_has_the_default_port_of_its_use():
    assert parse_address("a", 7190) == ("a", 7190)
    assert parse_address("::1", 7190) == ("::1", 7190)


def test_an_address_of_a_node_with_a_scheme_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"must have no scheme.*write HOST:PORT"):
        parse_address("ringfence://127.0.0.1:7101")
