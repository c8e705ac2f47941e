import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.node.real_cluster import real_cluster

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
