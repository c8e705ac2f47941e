"""Outputs that the documentation shows, compared with the code."""

import json
import re
from pathlib import Path

from ringfence.rules import Descriptor, format_limit
from ringfence.rules.loading.yaml_files import load_path

ROOT = Path(__file__).parents[2]


def test_the_key_on_the_admin_page_has_the_limit_of_the_example_rules() -> None:
    page = (ROOT / "docs" / "operate" / "admin-port.md").read_text("utf-8")
    [output] = re.findall(r"^\$ curl \S*/v1/keys/\S*\n(.*?)^```", page, re.M | re.S)
    shown = json.loads(output)

    rules = load_path(ROOT / "examples" / "rules").rules
    descriptor = Descriptor((("path", "/login"), ("client", "203.0.113.7")))
    [match] = rules.match("api", [descriptor])

    assert match is not None
    assert match.rule.limit is not None
    assert shown["identity"] == f"{match.rule.id:016x}"
    assert shown["limit"] == format_limit(match.rule.limit)
    assert shown["state"]["limit"] == match.rule.limit.amount
