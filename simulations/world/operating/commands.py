"""Law of the commands of an operator: their output must agree with the simulated cluster.

The truth comes from the hosts of the run, from the counters of the nodes, and from the units that
the commands themselves have spent.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from msgspec import Struct

from hashring import SHARDS, shard_of
from node.node import Node
from ringfence import runtime
from ringfence.client.decision import Decision
from ringfence.client.limiter import Limiter
from ringfence.rules import Descriptor
from ringfence.wire import MAX_THROTTLED
from simulations.judging.ledger import Ledger
from simulations.scenarios.generate_rules import LENT_RULE
from simulations.world.hosts import Host
from simulations.world.named_rules import DOMAIN
from simulations.world.operating.command_line import CommandLine, Ran
from simulations.world.operating.spending import owned_request
from simulations.world.world import World

__all__ = ["wrong_commands"]

_MOST_REPORTED = 5
"""Most reported wrong answers of one run."""
_ATTEMPTS = 3
"""Attempts of each query; a node that sends rarely may first find several dead connections."""
_AGAIN_S = 1.0
_TRIES = 20
"""Most seconds after a leave until all shards have owners."""
_LIMIT = 15
"""Amount of the rule `exact`, whose units stay counted until the end of the run."""
_COUNTED = ("keys", "checks", "allowed", "denied", "charges", "held_shards", "rules_hash")
"""Counters that do not change while no client sends checks."""
_BY_NODES = ("owner", "standby")
_HALF = 0.5
"""Share of the runs in which a node leaves, or has other rules, or checks are printed as JSON."""
_LOWERED = 0.5
"""Factor of the limits of a node with other rules."""
_MOST_KEYS = 8
"""Most keys of a rule whose units are compared before and after a leave."""


async def wrong_commands(world: World, ledger: Ledger, random: Random) -> list[str]:
    """Run the commands of an operator; return what was wrong."""
    hosts = world.hosts
    here = [
        sorted(hosts.in_ring().intersection(hosts.in_datacenter(datacenter)))
        for datacenter in sorted({host.datacenter for host in hosts.running()})
    ]
    large = [names for names in here if len(names) > 1]
    if not large:
        return []
    asked, leaving = random.sample(random.choice(large), 2)
    law = _Law(world, ledger, hosts.by_name[asked], leaving)
    await law.run(random)
    return law.wrong[:_MOST_REPORTED]


class _Step(Struct, frozen=True):
    """One run of `check`, for a key of the rule `exact`."""

    what: str
    words: tuple[str, ...]
    units: int
    """Units that it spends."""
    left: int
    """Units that it leaves."""
    text: str
    """Begin of its output."""

    @property
    def is_denied(self) -> bool:
        """Return whether the exit status is 1."""
        return self.text.startswith("denied")


class _Law:
    """Commands that are sent to one node, and what was wrong."""

    def __init__(self, world: World, ledger: Ledger, asked: Host, leaving: str) -> None:
        self._world = world
        self._hosts = world.hosts
        self._ledger = ledger
        self._asked = asked
        self._leaving = leaving
        self._line = CommandLine(world, asked)
        self._denied = 0
        """Denials of the key that the commands check."""
        self._used = Counter[str]()
        """Units that the commands have spent, by rule."""
        self.wrong: list[str] = []

    async def run(self, random: Random) -> None:
        """Run all commands; some of them only in a random half of the runs."""
        keys = {**owned_request(self._world, self._leaving, "command", "exact")}
        keys |= owned_request(self._world, self._leaving, "command", LENT_RULE)
        self._exact, self._lent = (f"{rule}={key}" for rule, key in keys.items())
        self._keys = {rule: self._counter(rule, key) for rule, key in keys.items()}
        # A node that was restarted counts denials from its first query on.
        await self._line.run("throttled", "--count", "1")
        await self._list_members()
        await self._why_all()
        await self._checks(json_=random.random() < _HALF)
        await self._wrong_input()
        await self._throttled()
        await self._print_members(other_rules=random.random() < _HALF)
        if random.random() < _HALF:
            await self._leave()
        self._world.pause(self._asked.name, True)
        ran = await self._line.run("check", DOMAIN, self._exact)
        self._world.pause(self._asked.name, False)
        self._expect(ran.status == 3 and not ran.out, "a check by a suspended node", ran)

    def _expect(self, is_right: bool, what: str, ran: object) -> None:
        if not is_right:
            self.wrong.append(f"{what}: {ran}")

    def _counter(self, rule: str, key: str) -> bytes:
        [match] = self._world.rules.match(DOMAIN, [Descriptor(((rule, key),))])
        assert match is not None
        return match.key

    def _nodes(self) -> dict[str, Node]:
        return {host.name: host.node for host in self._hosts.running() if host.node is not None}

    def _holder(self, key: bytes, home: str = "") -> str | None:
        """Return the node that holds a key in its home data center, or else in the asked one."""
        for name in self._hosts.in_datacenter(home or self._asked.datacenter):
            node = self._nodes().get(name)
            if node is not None and node.queries.held_map()[shard_of(key)]:
                return name
        return None

    def _units(self, key: bytes) -> int | None:
        """Return the units that the holder of a key counts."""
        holder = self._holder(key)
        return None if holder is None else self._nodes()[holder].queries.used(key)

    # -- members -------------------------------------------------------------------------------

    async def _list_members(self) -> None:
        """Compare the list of members with the hosts."""
        membership = self._nodes()[self._asked.name].membership
        for _ in range(_ATTEMPTS):
            measured = [name for name in self._nodes() if membership.rtt_ns(name) is not None]
            ran = await self._line.run("members", "--json")
            rows = {row["name"]: row for row in ran.row.get("members", ())}
            if all(name in rows and rows[name]["counters"] for name in self._nodes()):
                break
            await runtime.sleep(_AGAIN_S)
        self._expect(ran.status == 0, "members", ran)
        self._expect(ran.row.get("asked") == self._asked.name, "asked member", ran.row.get("asked"))
        self.wrong += self._wrong_rows(rows)
        self.wrong += [
            f"members shows a round trip of {row['rtt_ms']} ms to {name}"
            for name, row in rows.items()
            if (name == self._asked.name and row["rtt_ms"] is not None)
            or (name in measured and row["rtt_ms"] is None)
        ]

    async def _print_members(self, *, other_rules: bool = False) -> None:
        """Compare the printed list of members with the hosts; with `other_rules`, one node has
        other rules meanwhile."""
        part = self._hosts.by_name[self._leaving].limits_part
        if other_rules:
            self._world.lower_limits(self._leaving, _LOWERED)
        ran = await self._line.run("members")
        self._expect(ran.status == 0, "members", ran)
        self.wrong += [*self._wrong_table(ran), *self._wrong_remarks(ran)]
        if other_rules:
            self._world.lower_limits(self._leaving, part)

    def _wrong_rows(self, rows: dict[str, dict[str, Any]]) -> Iterator[str]:
        shards: Counter[str] = Counter()
        states = self._hosts.states(self._asked)
        for name, node in self._nodes().items():
            host, row = self._hosts.by_name[name], rows.get(name)
            if row is None or row["counters"] is None:
                yield f"members does not show {name} with its counters"
                continue
            shards[host.datacenter] += row["owned_shards"]
            own = node.queries.stats(1).counters
            shown = row | {each: row["counters"].get(each) for each in _COUNTED}
            expected = {each: own.get(each) for each in _COUNTED} | {
                "address": f"{host.name}:{host.port}",
                "datacenter": host.datacenter,
                "zone": host.zone,
                "weight": 1,
                "state": states[name],
                "reachable": True,
                "owned_shards": node.queries.held_map().count(1),
                "clock_suspect": node.clock.cluster.is_suspect,
            }
            for each, value in expected.items():
                if shown[each] != value:
                    yield f"members shows {each} of {name} as {shown[each]}, not {value}"
        yield from [
            f"members shows {count} shards in {datacenter}, not {SHARDS}"
            for datacenter, count in shards.items()
            if count != SHARDS
        ]
        for name in sorted(rows.keys() - self._nodes().keys()):
            if rows[name]["state"] not in ("dead", "left"):
                yield f"members shows {name} as {rows[name]['state']}, but it does not run"

    def _wrong_table(self, ran: Ran) -> Iterator[str]:
        lines, states = ran.lines, self._hosts.states(self._asked)
        running = len(self._nodes())
        if lines[0][0] != str(running) or lines[0][-3:] != [self._asked.name, "sees", "them"]:
            yield f"members prints the title {lines[0]} for {running} members"
        for name, node in self._nodes().items():
            counters = node.queries.stats(1).counters
            [words] = [line for line in lines if name in line and f"{name}:" in str(line)] or [[]]
            expected = [
                *(name, f"{name}:{self._hosts.by_name[name].port}", states[name]),
                *(str(counters[each]) for each in ("held_shards", "checks", "denied")),
            ]
            rest = iter(words)
            if not all(each in rest for each in expected):  # In this order, with others between.
                yield f"members prints {words} for {name}"

    def _wrong_remarks(self, ran: Ran) -> Iterator[str]:
        counters = {name: node.queries.stats(1).counters for name, node in self._nodes().items()}
        hashes = {each["rules_hash"] for each in counters.values()}
        expected = {
            "rules differ": len(hashes) > 1,
            "refused by": any(each["rules_refused"] for each in counters.values()),
            "evicted by": any(each["evicted"] for each in counters.values()),
            "versions differ": False,
            "not shown": "connections" not in ran.lines[2],  # The first column that is omitted.
        }
        for words, is_true in expected.items():
            if (words in ran.out) is not is_true:
                yield f"members must{'' if is_true else ' not'} print {words!r}: {ran.out}"

    # -- why -----------------------------------------------------------------------------------

    async def _why_all(self) -> None:
        """Compare the explanation of a request, for one key of each rule, with peeks of a client
        before and after it."""
        client = await self._line.client(ask_owners=True)
        limiter = Limiter(client.cluster)
        rules = self._world.named_rules
        requests = {
            rule: key for rule in rules.in_file for key in self._ledger.keys(rule)[:1]
        } | dict(each.split("=") for each in (self._exact, self._lent))
        words = [word for each in requests.items() for word in ("-d", "=".join(each))]
        for _ in range(_ATTEMPTS):
            before = [await limiter.peek(DOMAIN, {rule: key}) for rule, key in requests.items()]
            ran = await self._line.run("why", DOMAIN, *words, "--json")
            after = [await limiter.peek(DOMAIN, {rule: key}) for rule, key in requests.items()]
            rows = ran.row.get("descriptors", ())
            sources = [*(row["source"] for row in rows), *(str(each.source) for each in after)]
            if sources and all(each in _BY_NODES for each in sources):
                break
            await runtime.sleep(_AGAIN_S)
        text = await self._line.run("why", DOMAIN, *words)
        self._expect(len(rows) == len(requests), "why", ran)
        for (rule, key), row, first, last in zip(
            requests.items(), rows, before, after, strict=False
        ):
            assert last.rule is not None
            home = last.rule.home if last.rule.scope == "home" else ""
            expected = {
                "descriptor": [[rule, key]],
                "rule": rules.label(rule),
                "limit": last.limit,
                "shadow": last.rule.shadow,
                "node": self._holder(self._counter(rule, key), home),
            }
            wrong = [each for each, value in expected.items() if row[each] != value]
            wrong += _unlike(row, first, last)
            if wrong:
                self.wrong.append(f"why shows wrong {', '.join(wrong)}: {row}; peeks: {first}")
            place = f"  rule: {rules.label(rule)}\n"
            if not text.out.count(place) or f"{rule}={key}: " not in text.out:
                self.wrong.append(f"why does not print {rule}={key}: {text.out}")
        if [each.allowed for each in after] == [each.allowed for each in before]:
            is_denied = _is_denied(after)
            self._expect(ran.status == is_denied, "exit status of why", ran)
            self._expect(text.status == is_denied, "exit status of why", text)
            self._expect(ran.row.get("allowed") is not is_denied, "why", ran)

    # -- check ---------------------------------------------------------------------------------

    async def _checks(self, *, json_: bool) -> None:
        """Check, charge, refund and reset one key; compare each answer with the units."""
        one, pair = (self._exact,), (self._exact, "-d", self._lent)
        denied = "denied by 15/day sliding_window_log: retry after"
        await self._settle_links()
        for step in (
            _Step("a peek", (*one, "--peek"), 0, 15, "allowed: 15 left of 15/day"),
            _Step("a check", one, 1, 14, "allowed: 14 left of 15/day"),
            _Step("a costly check", (*one, "--cost", "5"), 5, 9, "allowed: 9 left of"),
            _Step("a check of two keys", (*pair, "--cost", "2"), 2, 7, "allowed: 7 left of"),
            _Step("a check beyond the limit", (*one, "--cost", "16"), 0, 7, "denied permanently:"),
            _Step("a denied check", (*one, "--cost", "8"), 0, 7, denied),
            _Step("a denied check of two keys", (*pair, "--cost", "9"), 0, 7, denied),
            _Step("a refund", (*one, "--refund", "--cost", "3"), -3, 10, "refunded 3 units: 10 l"),
            _Step("a charge", (*one, "--charge", "--cost", "4"), 4, 6, "charged: 6 left of"),
            _Step("an overdraft", (*one, "--charge", "--cost", "8"), 8, 0, "charged beyond the l"),
            _Step("a check of a used limit", one, 0, 0, denied),
            _Step("a peek at a used limit", (*one, "--peek"), 0, 0, denied),
            _Step("a reset", (*one, "--reset"), -17, 15, "reset: 15 left of"),
        ):
            ran = await self._line.run("check", DOMAIN, *step.words, *["--json"] * json_)
            self._denied += step.is_denied
            self._used["exact"] += step.units
            self._used[LENT_RULE] += step.units if "-d" in step.words else 0
            self._expect(ran.status == step.is_denied, f"exit status of {step.what}", ran)
            if json_:
                row = {
                    "remaining": step.left,
                    "limit": _LIMIT,
                    "source": "owner",
                    "node": self._leaving,
                    "rule": f"{DOMAIN} > exact",
                    "allowed": not step.is_denied and step.left > 0,
                }
                self._expect(row.items() <= ran.row.items(), step.what, ran)
            else:
                self._expect(ran.out.startswith(step.text), step.what, ran)
            for rule, key in self._keys.items():
                used = self._units(key)
                if used != self._used[rule]:
                    self.wrong.append(f"{rule} counts {used} units after {step.what}: {ran}")
                    return
        ran = await self._line.run("check", "adhoc", self._exact, "--limit", "5/hour")
        again = await self._line.run("check", "adhoc", self._exact, "--limit", "5/hour", "--peek")
        for each in (ran, again):
            self._expect(each.out.startswith("allowed: 4 left of 5/hour"), "an ad-hoc limit", each)

    async def _settle_links(self) -> None:
        """Wait until the asked node has a connection to the owner of the checked keys."""
        for _ in range(_ATTEMPTS):
            ran = await self._line.run("check", DOMAIN, self._exact, "--peek", "--json")
            if ran.row.get("source") == "owner":
                return
            await runtime.sleep(_AGAIN_S)
        self.wrong.append(f"no owner decides a check: {ran}")

    async def _wrong_input(self) -> None:
        """Send requests without a rule, and commands that must be refused."""
        free = await self._line.run("check", DOMAIN, "exakt=k")
        self._expect(free.out.startswith("allowed: no rule applies"), "a check without rule", free)
        self._expect("did you mean 'exact'?" in free.out, "a check without rule", free)
        for words in (
            ("check", DOMAIN, "exakt=k", "--strict"),
            ("check", "sin", self._exact),
            ("check", DOMAIN, "exact"),
            ("check", DOMAIN, self._exact, "--peek", "--cost", "2"),
            ("check", DOMAIN, self._exact, "--cost", "many"),
            ("leave", "no-host"),
        ):
            ran = await self._line.run(*words)
            self._expect(ran.status == 2 and not ran.out, " ".join(words), ran)
        if self._world.scenario.bounded_refunds:
            client = self._hosts.clients[0].cluster
            for verb in ("members", "throttled"):
                ran = await self._line.run(verb, cluster=client)
                self._expect(ran.status == 2, f"{verb} with a token without the scope", ran)

    # -- throttled -----------------------------------------------------------------------------

    async def _throttled(self) -> None:
        """Compare the list of denied keys with the lists of the nodes."""
        words = ("throttled", "--count", str(MAX_THROTTLED))
        for _ in range(_ATTEMPTS):
            listed = {
                name: node.queries.throttled(1, MAX_THROTTLED)
                for name, node in self._nodes().items()
            }
            ran = await self._line.run(*words, "--json")
            if ran.row.get("missing") == []:
                break
            await runtime.sleep(_AGAIN_S)
        text = await self._line.run(*words)
        self._expect((ran.status, text.status) == (0, 0), "throttled", ran)
        nodes: dict[str, dict[str, int]] = {}
        for name, each in listed.items():
            for key, denied in zip(each.keys, each.counts, strict=True):
                nodes.setdefault(key.hex(), {})[name] = denied
        total = sum(each.denied for each in listed.values())
        most = sorted((sum(each.values()) for each in nodes.values()), reverse=True)
        rows = ran.row.get("keys", ())
        counts = [row["denied"] for row in rows]
        self._expect(ran.row.get("denied") == total, f"throttled must list {total} denials", ran)
        self._expect(f"{total} denials in all" in text.out, f"{total} denials", text)
        self._expect(counts == most[:MAX_THROTTLED], f"throttled must list {most}", counts)
        for row in rows:
            found = nodes.get(row["key"])
            self._expect(row["nodes"] == found, f"denials must be {found}", row)
        checked = self._keys["exact"].hex()
        self._denied_key(next((row for row in rows if row["key"] == checked), {}), text)

    def _denied_key(self, row: dict[str, Any], text: Ran) -> None:
        """Compare the row of the key that the commands have checked with their denials."""
        expected = {
            "counter": [self._exact.split("=")],
            "rule": f"{DOMAIN} > exact",
            "node": self._leaving,
            "shadow": False,
        }
        self._expect(expected.items() <= row.items(), "the denied key", row)
        most = row.get("denied", 0)
        least = most - row.get("error", 0)
        self._expect(least <= self._denied <= most, f"{self._denied} checks were denied", row)
        [words] = [line for line in text.lines if self._exact in line] or [[""]]
        is_printed = words[-1] == self._leaving and str(most) in words
        self._expect(is_printed, "the printed denied key", text)

    # -- leave ---------------------------------------------------------------------------------

    async def _leave(self) -> None:
        """Make a node leave; its shards must have owners, and its counters must stay."""
        keys = [
            *self._keys.values(),
            *(self._counter("exact", key) for key in self._ledger.keys("exact")[:_MOST_KEYS]),
        ]
        before = {key: self._units(key) for key in keys}
        async with runtime.open_task_group() as tasks:
            tasks.start_soon(self._leave_when_asked)
            ran = await self._line.run("leave", self._leaving)
            others = [host for host in self._hosts.running() if host.name != self._leaving]
            seen = [self._hosts.states(host).get(self._leaving, "left") for host in others]
            self._expect("left" in seen, f"members see a node that has left as {seen}", ran)
            if ran.status:
                tasks.cancel_scope.cancel()
        self._expect(ran.status == 0, "leave", ran)
        self._expect(ran.out.startswith(f"{self._leaving} has left, "), "leave", ran)
        self._expect(self._leaving not in self._nodes(), "a node that has left runs", ran)
        for _ in range(_TRIES):
            if self._hosts.is_settled():
                break
            await runtime.sleep(_AGAIN_S)
        after = {key: self._units(key) for key in keys}
        self._expect(after == before, f"a leave must keep the counters {before}", after)
        await self._list_members()
        await self._print_members()

    async def _leave_when_asked(self) -> None:
        node = self._nodes()[self._leaving]
        await node.asked_to_leave.wait()
        await self._world.leave(self._leaving)


def _is_denied(peeks: Sequence[Decision]) -> bool:
    """Return whether a request of these descriptors is denied: by any rule outside quota mode, or
    by all its rules in quota mode."""
    plain = [each.allowed for each in peeks if each.rule is None or not each.rule.quota]
    quotas = [each.allowed for each in peeks if each.rule is not None and each.rule.quota]
    return not all(plain) or (bool(quotas) and not any(quotas))


def _unlike(row: dict[str, Any], before: Decision, after: Decision) -> list[str]:
    """Return in which values a decision differs from two others, between which it was made.

    Without checks, the remaining units only increase.
    """
    wrong = []
    if not (before.remaining or 0) <= (row["remaining"] or 0) <= (after.remaining or 0):
        wrong.append("remaining")
    for name in ("allowed", "over_soft", "over_shadow", "permanent"):
        values = [
            getattr(each, "is_permanent" if name == "permanent" else name)
            for each in (before, after)
        ]
        if values[0] == values[1] != row[name]:
            wrong.append(name)
    return wrong
