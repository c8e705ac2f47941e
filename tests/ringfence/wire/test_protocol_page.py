"""Examples in docs/reference/wire-protocol.md, compared with the codec."""

import re
from pathlib import Path

import pytest

import ringfence.wire
from ringfence.limiter.limit import Limit
from ringfence.limiter.outcome import Outcomes
from ringfence.limiter.packed.packed_snapshot import PackedSnapshot
from ringfence.wire import Answer, Cause, ErrorCode, Message, Request, decode, encode

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "wire-protocol.md").read_text(
    encoding="utf-8"
)
NAMES = {
    **vars(ringfence.wire),
    "Limit": Limit,
    "Outcomes": Outcomes,
    "PackedSnapshot": PackedSnapshot,
}
EXAMPLES = re.findall(r"```text\n([0-9a-f\s]+)\n```\n\n```python\n(.*?)\n```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("hexadecimal", "value"), EXAMPLES)
def test_an_example_decodes_to_its_value_and_encodes_to_its_bytes(hexadecimal, value):
    payload = bytes.fromhex(hexadecimal)
    message = eval(value, NAMES)

    assert decode(payload) == message
    assert encode(message) == payload


def test_decoded_messages_cannot_be_changed_except_requests_and_answers():
    for hexadecimal, _ in EXAMPLES:
        message = decode(bytes.fromhex(hexadecimal))
        if not isinstance(message, Request | Answer):
            with pytest.raises(AttributeError):
                setattr(message, message.__struct_fields__[0], None)


def test_every_message_has_an_example():
    example_types = {type(decode(bytes.fromhex(hexadecimal))) for hexadecimal, _ in EXAMPLES}

    assert example_types == set(Message.__args__)


@pytest.mark.parametrize("code", ErrorCode)
def test_every_error_code_is_in_the_table(code):
    assert f"| {code.value} | `{code.name}` |" in PAGE


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_is_in_the_table(cause):
    assert f"| `{cause}` |" in PAGE
