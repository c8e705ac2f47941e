from collections.abc import Mapping, Sequence

from ringfence.client.decision import Decision
from ringfence.peering.columns import Row
from ringfence.rules import Rule

def find_lone(
    known: Mapping[object, tuple[Rule, bytes]], name: object, requests: Sequence[object]
) -> tuple[list[Rule], list[bytes]] | None: ...
def decisions(rules: list[Rule], rows: list[Row]) -> list[Decision]: ...
