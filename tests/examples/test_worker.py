import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.node.real_cluster import real_cluster
from tests.ringfence.gateway.processes import free_tcp_ports

FOLDER = Path(__file__).parents[2] / "examples" / "worker"


def start_worker(url: str, addresses: Sequence[str]) -> "subprocess.Popen[str]":
    worker = subprocess.Popen(
        [sys.executable, FOLDER / "worker.py", "--cluster", url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdin is not None
    worker.stdin.write("\n".join(addresses) + "\n")
    worker.stdin.close()
    worker.stdin = None
    return worker


def test_two_workers_send_everything_and_share_one_limit() -> None:
    jobs = [[f"{worker}{n}@slow.test" for n in range(6)] for worker in "ab"]
    with real_cluster(FOLDER / "rules.yaml", ("a",), "check") as cluster:
        workers = [start_worker(cluster.url, [*each, f"{each[0]}.quick.test"]) for each in jobs]
        outputs = [worker.communicate(timeout=90)[0].splitlines() for worker in workers]

    sent = sorted(line.split() for lines in outputs for line in lines)
    slow = [(float(at), timing) for at, timing, address in sent if address.endswith("@slow.test")]
    assert {address for _, _, address in sent} >= {*jobs[0], *jobs[1]}
    assert len(sent) == 14
    assert [worker.returncode for worker in workers] == [0, 0]
    assert sum(timing == "later" for _, timing in slow) >= 1
    # Five at once, then one every 0.2 s. Clock reads and output make the figure inexact.
    assert slow[-1][0] - slow[0][0] > 1.0
    quick = [timing for _, timing, address in sent if address.endswith(".quick.test")]
    assert quick == ["now", "now"], "the limit of one host does not delay another host"


def test_a_host_over_its_limit_does_not_delay_another_host() -> None:
    slow = [f"{n}@slow.test" for n in range(30)]
    other = [f"{n}@other.test" for n in range(8)]
    with real_cluster(FOLDER / "rules.yaml", ("a",), "check") as cluster:
        worker = start_worker(cluster.url, [*slow, *other])
        sent = [line.split()[2] for line in worker.communicate(timeout=90)[0].splitlines()]

    assert sorted(sent) == sorted([*slow, *other])
    assert [each for each in sent if each in other] == other
    # The 8 mails need 0.6 s and the 30 mails need 5 s.
    assert sent.index(other[-1]) < 24


def test_mail_waits_while_no_node_has_ever_answered() -> None:
    [port] = free_tcp_ports(1)
    worker = start_worker(f"ringfence://127.0.0.1:{port}", ["a@example.test"])

    try:
        with pytest.raises(subprocess.TimeoutExpired):
            worker.communicate(timeout=8)  # Longer than the client waits for its first node.
    finally:
        worker.kill()
        output, _ = worker.communicate()

    assert output == ""
