"""Two data centers 40 ms apart, with real nodes, real sockets and a relay that adds the delay."""

from pathlib import Path
from statistics import median

import trio

from benchmarks.cluster.far import DELAY, FarNodes, local_beside_far, under_starts
from ringfence.wire import Source


def test_node_starts_in_the_far_data_center_end_no_node_and_far_checks_delay_no_local_check(
    tmp_path: Path,
) -> None:
    with FarNodes(tmp_path) as nodes:
        nodes.start_all()
        local, far = trio.run(local_beside_far, nodes.url, 20, True)
        answers = trio.run(under_starts, nodes, 2)

        assert nodes.ended == []
        assert nodes.starts == 2
        assert answers[Source.OWNER] > 0
        assert median(far) > 2 * DELAY
        assert median(local) < DELAY
        for name in ("e1", "e2"):
            assert "internal error" not in nodes.log(name)
