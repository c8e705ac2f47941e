from typing import Any

import msgspec
import pytest

from node.config.settings import NodeSettings
from ringfence.settings.validation_errors import choices_of, describe_error


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_keys": "x"}, "max_keys must be a whole number, got text"),
        ({"max_keys": 1.5}, "max_keys must be a whole number, got number"),
        ({"forward_timeout": []}, "forward_timeout must be a number, got list"),
        ({"merge_domains": 1}, "merge_domains must be true or false, got whole number"),
        ({"join": 1}, "join must be a list, got whole number"),
        ({"join": [1]}, "join[0] must be text, got whole number"),
        ({"ruels": "x"}, "unknown setting 'ruels'; did you mean 'rules'?"),
    ],
)
def test_errors_name_the_setting_without_python_types(values: dict[str, Any], message: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(values, NodeSettings)

    assert describe_error(caught.value, fields=NodeSettings.__struct_fields__) == message


@pytest.mark.parametrize(
    ("word", "hint"), [("token_buket", "; did you mean 'token_bucket'?"), ("x", "")]
)
def test_an_unknown_word_is_reported_with_the_known_words(word: str, hint: str) -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert({"default_algorithm": word}, NodeSettings)

    message = describe_error(caught.value, choices=choices_of(NodeSettings))
    assert message.startswith("default_algorithm must be one of token_bucket, ")
    assert message.endswith(f", got {word!r}{hint}")


def test_an_error_without_a_setting_names_the_given_place() -> None:
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert("many", int, strict=False)

    assert describe_error(caught.value) == "the value must be a whole number, got text"
    named = describe_error(caught.value, place="MAX_KEYS", value="many")
    assert named == "MAX_KEYS must be a whole number, got 'many'"
