"""Command `ringfence node`: settings that prevent the start of a node."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from node.config.access import KeyDir
from node.config.key_files import write_keys
from ringfence.transport.tls.certificate_authority import issue
from tests.invocation import Run, refused


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ruels = 3\n", "did you mean 'rules'"),
        ("join = [\n", "must be TOML, got: "),
        ('rules = "nowhere.yaml"\n', "nowhere.yaml"),
        ('rules = "bad.yaml"\n', "bad.yaml:2"),
        ('keys = "nowhere"\n', "ringfence keys new"),
        ('listen = "0.0.0.0:7101"\n', "run `ringfence keys new keys`"),
        ('join = ["127.0.0.1"]\nlisten = "127.0.0.1"\nweight = 5\n', "use 0.25 to 4"),
    ],
)
def test_a_node_with_invalid_settings_does_not_start_and_reports_the_reason(
    run: Run, tmp_path: Path, text: str, expected: str
) -> None:
    (tmp_path / "bad.yaml").write_text("domain: api\nlimits: []\n", "utf-8")
    (tmp_path / "node.toml").write_text(text, "utf-8")

    result = run("node", "--config", tmp_path / "node.toml", "--name", "a")

    assert expected in refused(result)


def test_problems_of_keys_and_of_rules_are_reported_together(run: Run, tmp_path: Path) -> None:
    rules = tmp_path / "bad.yaml"
    rules.write_text("domain: api\nlimits: []\n", "utf-8")

    ran = run("node", "--check", "--rules", rules, "--keys", tmp_path / "nowhere")

    assert "bad.yaml:2" in refused(ran)
    assert "ringfence keys new" in ran.err


def test_the_suggestions_for_an_unknown_option_name_no_hidden_options(run: Run) -> None:
    similar, alone = run("node", "--listn", "a:1").err, run("node", "--siblin", "a:1").err

    assert "--listen" in similar
    assert "--sibling" not in similar + alone


@pytest.mark.parametrize("option", ["--name", "--rules", "--keys"])
def test_an_empty_value_of_an_option_is_rejected(run: Run, option: str) -> None:
    ran = run("node", "--check", option, "")

    assert ran.status == 2
    assert f"Invalid value for '{option}': must not be empty; leave the option out" in ran.err


def test_a_host_runs_1_to_256_processes(run: Run) -> None:
    def status(processes: int) -> int:
        return run("node", "--check", "--processes", processes).status

    assert [status(processes) for processes in (0, 1, 256, 257)] == [2, 0, 0, 2]


def test_a_missing_settings_file_is_named(run: Run) -> None:
    assert "nowhere.toml: no such file" in refused(run("node", "--config", "nowhere.toml"))


@pytest.mark.parametrize("option", ["--config", "--gateway-config"])
def test_a_settings_file_must_not_be_a_directory(run: Run, tmp_path: Path, option: str) -> None:
    assert "is a directory" in refused(run("node", option, tmp_path))


def test_an_expired_certificate_keeps_a_node_from_starting(run: Run, tmp_path: Path) -> None:
    keys = KeyDir(tmp_path / "keys")
    write_keys(keys.path, [], [], ["app:check"], 2)
    long_ago = datetime.now(UTC) - timedelta(days=30)
    certificate, key = issue(
        keys.ca.read_bytes(), keys.ca_key.read_bytes(), [], [], long_ago, days=1
    )
    keys.certificate.write_bytes(certificate)
    keys.key.write_bytes(key)

    message = refused(run("node", "--keys", keys.path))

    assert "node.pem expired on" in message
    assert "ringfence keys renew" in message


def test_a_node_starts_without_modules_that_only_clients_and_files_need() -> None:
    unneeded = ["yaml", "tomllib", "asyncio", "h11", "rich", "prometheus_client", "dns.resolver"]
    unneeded += ["ringfence.client.connect", "ringfence.client.cluster", "ringfence.blocking"]
    unneeded += ["ringfence.rules.loading.yaml_files", "node.config.rules_reload", "node.admin"]
    program = (
        "import sys\nimport node.cli.command, node.cli.node, node.serve\n"
        f"print(*(sys.modules.keys() & set({unneeded})))"
    )

    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert loaded.stdout.strip() == ""


def test_options_that_only_the_supervisor_uses_are_not_in_the_help(run: Run) -> None:
    assert "--sibling" not in run("node", "--help").out
