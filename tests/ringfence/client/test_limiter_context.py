"""Other uses of `connect` and `local` than `async with` say what to write."""

import pytest

import ringfence
from ringfence import ConfigError


@pytest.mark.parametrize(
    ("name", "argument"), [("connect", "ringfence://127.0.0.1:1"), ("local", {})]
)
async def test_the_error_of_await_or_plain_with_shows_what_to_write(
    name: str, argument: object
) -> None:
    opening = getattr(ringfence, name)(argument)

    with pytest.raises(ConfigError, match=rf"got await; write `async with ringfence\.{name}"):
        await opening
    with (
        pytest.raises(ConfigError, match=rf"write `with ringfence\.blocking\.{name}"),
        opening,
    ):
        pass


async def test_an_exception_of_the_block_is_raised_unchanged() -> None:
    with pytest.raises(ZeroDivisionError):
        async with ringfence.local({"domain": "d", "descriptors": []}):
            raise ZeroDivisionError
