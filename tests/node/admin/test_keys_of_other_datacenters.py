"""Keys of rules whose home is another data center, on the admin port."""

from trio.testing import MockClock

from tests.node.admin.asking import app_of, ask
from tests.node.cluster import empty_world

RULES = """
domain: api
descriptors:
  - key: home
    rate_limit: {unit: hour, requests_per_unit: 5, global: {mode: home, home: eu}}
"""


async def test_a_key_whose_home_has_no_member_is_refused_with_the_name_of_the_home(
    autojump_clock: MockClock,
) -> None:
    async with empty_world(rules=RULES) as made:
        await made.start("u1", datacenter="us")
        missing = await ask(app_of(made.nodes["u1"]), "/v1/keys/api?home=x")
        await made.start("e1", datacenter="eu")
        await made.settle()
        found = await ask(app_of(made.nodes["u1"]), "/v1/keys/api?home=x")

    assert missing.status == 503
    assert missing.json["title"] == "no node of data center 'eu', the home of this rule, answers"
    assert "start a node there" in missing.json["detail"]
    assert (found.json["datacenter"], found.json["owner"]) == ("eu", "e1")
