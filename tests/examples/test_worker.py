import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.node.real_cluster import real_cluster

FOLDER = Path(__file__).parents[2] / "examples" / "worker"


def work(url: str, addresses: Sequence[str]) -> "subprocess.Popen[str]":
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


def test_two_workers_send_everything_and_together_no_faster_than_the_limit() -> None:
    jobs = [[f"{worker}{n}@slow.test" for n in range(6)] for worker in "ab"]
    with real_cluster(FOLDER / "rules.yaml", ("a",), "check") as cluster:
        workers = [work(cluster.url, [*each, f"{each[0]}.quick.test"]) for each in jobs]
        reported = [worker.communicate(timeout=90)[0].splitlines() for worker in workers]

    sent = sorted(line.split() for lines in reported for line in lines)
    slow = [(float(at), how) for at, how, address in sent if address.endswith("@slow.test")]
    assert {address for _, _, address in sent} >= {*jobs[0], *jobs[1]}
    assert len(sent) == 14
    assert [worker.returncode for worker in workers] == [0, 0]
    assert sum(how == "later" for _, how in slow) >= 1
    # Five at once, then one each 0.2 s; the clock of the node and the printing have some play.
    assert slow[-1][0] - slow[0][0] > 1.0
    quick = [how for _, how, address in sent if address.endswith(".quick.test")]
    assert quick == ["now", "now"], "another host does not wait for the slow one"
