"""Errors for other uses of `connect` and `local` than `async with`."""

import asyncio

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


@pytest.mark.parametrize("is_opened_elsewhere", [True, False])
def test_closing_in_another_task_is_an_error_that_cancels_no_task(
    is_opened_elsewhere: bool,
) -> None:
    opening = ringfence.connect("ringfence://127.0.0.1:1", connect_timeout=0.05)

    async def close() -> None:
        with pytest.raises(ConfigError, match="must be closed in the task that opened it"):
            await opening.__aexit__(None, None, None)

    async def main() -> int:
        if is_opened_elsewhere:
            await asyncio.create_task(opening.__aenter__())
            await close()
        else:
            await opening.__aenter__()
            await asyncio.create_task(close())
        await asyncio.sleep(0.01)
        return len(asyncio.all_tasks())

    assert asyncio.run(main()) == 1
