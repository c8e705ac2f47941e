"""P17: error messages contain no token, and the docs pass no token as a process argument."""

import re
from pathlib import Path

import pytest

from node.config.access import KeyDir
from node.config.key_files import write_keys
from ringfence.errors import ConfigError
from ringfence.integrations.limits.address import limiter_at
from tests.node.end_to_end.test_serve import ROOT, asked, ringfence, rules_of, started

SECRET = "00112233445566778899aabbccddeeff"
TOKEN = f"web.{SECRET}"
MISTYPED = [
    f"ringfence:/{TOKEN}@a:7101",
    f"ringfence//{TOKEN}@a:7101",
    f"{TOKEN}@a:7101",
    f"{TOKEN}",
    f"https://{TOKEN}@a:7101",
    f"ringfence://{TOKEN}@a/b",
    f"ringfence://{TOKEN}/a:7101",
    f"ringfence://{TOKEN}@",
    f"ringfence://{TOKEN}",
    f"ringfence://{TOKEN}:7101",
    f"ringfence://{SECRET}:7101",
    f"ringfence://{TOKEN}:a:7101",
    f"ringfence://a:{TOKEN}",
    f"ringfence://a,{TOKEN}@b:port",
    f"ringfence://a:7101?{TOKEN}",
    f"ringfence://a:7101?token={TOKEN}",
    f"ringfence://a:7101?timeout={TOKEN}",
    f"ringfence://a:7101?token_file={TOKEN}",
    f"ringfence://a:7101/{TOKEN}",
    f"ringfence://{TOKEN} @a:7101",
    f"ringfence://{TOKEN}x@a:7101",
    f"ringfence://web:{SECRET}@a:7101",
    f"ringfence://{TOKEN}@[a:7101",
    f"ringfence://a:7101@{TOKEN}",
]
# A storage rejects these before it connects. The others are rejected only on connect.
STORAGES = [each for each in MISTYPED if re.match(r"ringfence://[^ \[]*$", each)]


def shows_secret(text: str) -> bool:
    """Return whether a text contains any six characters of the secret."""
    return any(SECRET[at : at + 6] in text for at in range(len(SECRET) - 5))


@pytest.mark.parametrize("address", MISTYPED)
def test_the_error_for_a_mistyped_address_does_not_contain_its_token(address: str) -> None:
    for command in (["members"], ["check", "api", "client=x"], ["gateway"]):
        status, out, err = asked(*command, "--cluster", address)

        assert status == 2, (out, err)
        assert not shows_secret(out + err)
        assert "ringfence:" in err


@pytest.mark.parametrize(
    "address", [f"http//{TOKEN}@a", f"http://{TOKEN}@127.0.0.1:1", "http://a:b"]
)
def test_the_error_for_an_admin_port_address_does_not_contain_its_token(address: str) -> None:
    _, out, err = asked("throttled", address)

    assert err
    assert not shows_secret(out + err)


@pytest.mark.parametrize("address", STORAGES)
def test_the_error_for_a_storage_address_does_not_contain_its_token(address: str) -> None:
    with pytest.raises(ConfigError) as caught:
        limiter_at(address, {})

    assert not shows_secret(str(caught.value))


def test_a_command_reads_its_token_from_a_file(tmp_path: Path) -> None:
    keys = KeyDir(tmp_path / "keys")
    write_keys(keys.path, ["a"], ["127.0.0.1"], ["ops:check,observe"], days=2)
    rules = tmp_path / "rules.yaml"
    rules.write_text(rules_of(5), "utf-8")
    flags = ["--name", "a", "--rules", str(rules), "--keys", str(keys.path)]
    with started(tmp_path, {"a": flags}) as running:
        options = f"ca={keys.ca}&token_file={keys.path / 'ops.token'}&timeout=20"
        address = f"ringfence://127.0.0.1:{running['a'].port}?{options}"
        status, out, err = ringfence("members", "--json", "--cluster", address)

    assert status == 0, err
    assert '"asked": "a"' in out


def test_no_page_of_the_docs_passes_a_token_as_a_process_argument() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    pages += [each for each in (ROOT / "examples").rglob("*") if each.is_file()]
    # `export` and `printf` are shell builtins, so their words are not process arguments.
    token_argument = re.compile(
        r"^(?!.*\b(export|printf)\b).*(--cluster|-H|curl|ringfence) .*(\.token\)|_URL)"
    )
    lines_with_token = [
        f"{page.name}: {line}"
        for page in pages
        if page.suffix in (".md", ".yaml", ".toml", ".service", ".conf")
        for line in page.read_text("utf-8").splitlines()
        if token_argument.search(line)
    ]

    assert lines_with_token == []
