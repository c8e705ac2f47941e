from collections.abc import Mapping, Sequence

from ringfence.client.decision import Decision
from ringfence.rules import Rule
from ringfence.wire import OutcomeRow

def find_lone(
    known: Mapping[object, tuple[Rule, bytes]], name: object, requests: Sequence[object]
) -> tuple[list[Rule], list[bytes]] | None: ...
def decisions(rules: list[Rule], rows: list[OutcomeRow]) -> list[Decision]: ...
