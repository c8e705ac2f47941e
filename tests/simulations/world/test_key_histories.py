from ringfence.wire import Source
from simulations.judging.ledger import Answered, Ledger
from simulations.reporting.outcome import Violation
from simulations.world.key_histories import keys_of


def ledger() -> Ledger:
    found = Ledger()
    for rule, key in (("exact", "k1"), ("exact", "k10"), ("client", "k3")):
        found.add(rule, Answered(1.0, 1.1, "dc1", key, 1, True, Source.OWNER))
    return found


def test_violations_name_their_keys_in_several_forms() -> None:
    texts = [
        "exact=k10: 24 units in 86400 s, at most 15 may pass",
        "k3 was decided by STANDBY, not its owner",
        "views differ",
        "exact=k7: a key that no client checked",
        "exact=k10: admitted although 15 of 15 were used",
    ]

    found = keys_of([Violation("law", 1.0, text) for text in texts], ledger())

    assert found == [("exact", "k10"), ("client", "k3")]
