"""What msgspec says, as a person reads it."""

from typing import Any

import msgspec
import pytest

from node.config.settings import NodeSettings
from node.config.validation_errors import in_plain_words


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"max_keys": "x"}, "max_keys: expected a whole number, got text"),
        ({"max_keys": 1.5}, "max_keys: expected a whole number, got number"),
        ({"forward_timeout": []}, "forward_timeout: expected a number, got list"),
        ({"merge_domains": 1}, "merge_domains: expected true or false, got whole number"),
        ({"join": 1}, "join: expected a list, got whole number"),
        ({"join": [1]}, "join[0]: expected text, got whole number"),
        ({"default_algorithm": "x"}, "default_algorithm: 'x' is not known; known are y, z"),
    ],
)
def test_place_and_fault_are_named_without_types_of_python(told: dict[str, Any], said: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(told, NodeSettings)

    assert in_plain_words(caught.value, known="y, z") == said


def test_what_has_no_place_is_told_without_one() -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert("many", int, strict=False)

    assert in_plain_words(caught.value) == "expected a whole number, got text"
