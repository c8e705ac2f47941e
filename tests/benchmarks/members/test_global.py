"""The latencies of the benchmark of two data centers."""

from benchmarks.members.global_ import Probes


def test_latencies_belong_to_the_phase_in_which_their_checks_ended() -> None:
    probes = Probes()
    for asked_at, now in ((1.0, 1.001), (1.9, 2.1), (2.2, 2.203), (2.9, 3.0)):
        probes.add(asked_at, now)

    assert [round(each) for each in probes.between(2.0, 3.0)] == [200, 3]
    assert [round(each) for each in probes.between(3.0, 4.0)] == [100]
    assert probes.between(4.0, 5.0) == []
