import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from node.config.key_files import write_keys
from node.config.settings import load_settings
from tests.programs import require

FOLDER = Path(__file__).parents[2] / "examples" / "systemd"
UNIT = FOLDER / "ringfence.service"
LATE_RULES = """
domain: late
descriptors: [{key: user, rate_limit: {unit: minute, requests_per_unit: 5}}]
"""
PROGRAM = "/opt/ringfence/bin/ringfence"


def lines_of(setting: str) -> list[list[str]]:
    """Return the words of each line of a setting. The unit may have several such lines."""
    lines = UNIT.read_text("utf-8").splitlines()
    return [shlex.split(line.partition("=")[2]) for line in lines if line.startswith(f"{setting}=")]


def command() -> list[str]:
    [words] = lines_of("ExecStart")
    return words


def run_by_unit(words: list[str], config: Path, *flags: str) -> "subprocess.CompletedProcess[str]":
    """Run a command of the unit, with the settings file of this test."""
    assert words[0] == PROGRAM
    assert words[-2:] == ["--config", "/etc/ringfence/node.toml"]
    return subprocess.run(
        [sys.executable, "-m", "node.entry", *words[1:-1], config, *flags],
        capture_output=True,
        text=True,
        cwd=FOLDER.parents[1],
        check=False,
    )


def test_rules_and_keys_are_checked_before_a_start_and_before_a_reload(tmp_path: Path) -> None:
    (tmp_path / "rules").mkdir()
    (tmp_path / "node.toml").write_text('rules = "rules"\nkeys = "keys"\n', "utf-8")
    write_keys(tmp_path / "keys", [], [], ["app:check"], 2)
    [before_start] = lines_of("ExecStartPre")
    before_reload, signal_line = lines_of("ExecReload")

    (tmp_path / "rules" / "late.yaml").write_text(LATE_RULES, "utf-8")
    good = run_by_unit(before_start, tmp_path / "node.toml", "--name", "a")
    (tmp_path / "rules" / "late.yaml").write_text(LATE_RULES.replace("minute", "minuet"), "utf-8")
    bad = run_by_unit(before_reload, tmp_path / "node.toml")
    (tmp_path / "rules" / "late.yaml").write_text(LATE_RULES, "utf-8")
    (tmp_path / "keys" / "tokens.toml").write_text("[tokens", "utf-8")
    without_tokens = run_by_unit(before_reload, tmp_path / "node.toml")

    assert before_start == before_reload
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout == f"node a can start; rules: 1, keys from {tmp_path}/keys\n"
    assert bad.returncode == without_tokens.returncode == 2
    assert "unknown unit 'minuet'" in bad.stderr
    assert "tokens.toml" in without_tokens.stderr
    assert signal_line == ["/bin/kill", "-HUP", "$MAINPID"]


def test_systemd_analyze_reports_no_problem_in_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / UNIT.name
    # The program is not installed here. Another program replaces it, so the rest is verified.
    unit.write_text(UNIT.read_text("utf-8").replace(PROGRAM, sys.executable), "utf-8")

    analysis = subprocess.run(
        [require("systemd-analyze"), "verify", "--man=no", unit],
        capture_output=True,
        text=True,
        check=False,
    )

    lines_of_unit = [line for line in analysis.stderr.splitlines() if unit.name in line]
    assert lines_of_unit == []


def test_the_settings_of_the_example_are_valid() -> None:
    settings = load_settings(FOLDER / "node.toml", environment={})

    assert settings.is_beyond_loopback
    assert settings.keys
    assert settings.listen in settings.join


def test_the_node_of_the_unit_reloads_on_sighup_and_leaves_on_sigterm(tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    rules.mkdir()
    (rules / "early.yaml").write_text("domain: early\n", "utf-8")
    (tmp_path / "node.toml").write_text('rules = "rules"\nreload_interval = 0\n', "utf-8")
    program, *words = command()
    assert program == PROGRAM
    assert words[-2:] == ["--config", "/etc/ringfence/node.toml"]
    log = tmp_path / "log"
    assert lines_of("Type") == [["notify"]]
    systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    systemd.settimeout(20)
    systemd.bind(str(tmp_path / "notify"))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, log.open("wb") as log_file:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
        sock.close()
        node = subprocess.Popen(
            [
                *(sys.executable, "-m", "node.entry", *words[:-1], tmp_path / "node.toml"),
                *("--listen", f"127.0.0.1:{port}"),
            ],
            stderr=log_file,
            cwd=FOLDER.parents[1],
            env=os.environ | {"NOTIFY_SOCKET": str(tmp_path / "notify")},
        )
    try:
        assert systemd.recv(100) == b"READY=1"
        wait_for(log, "view of 1 member", node)
        (rules / "late.yaml").write_text(LATE_RULES, "utf-8")
        node.send_signal(signal.SIGHUP)
        wait_for(log, "in force, 1 in all", node)
        node.send_signal(signal.SIGTERM)
        assert systemd.recv(100) == b"STOPPING=1"
        assert node.wait(20) == 0
    finally:
        systemd.close()
        node.kill()
        node.wait()
    assert "has stopped" in log.read_text("utf-8")


def wait_for(log: Path, words: str, process: "subprocess.Popen[bytes]") -> None:
    """Wait until a process has logged `words`. Only the log shows what the process has done."""
    deadline = time.monotonic() + 60
    while words not in log.read_text("utf-8"):
        assert process.poll() is None, log.read_text("utf-8")
        assert time.monotonic() < deadline, log.read_text("utf-8")
        time.sleep(0.02)
