"""Sections of the report: stories of violations, nearby runs, and explained figures."""

from simulations.reporting.explanations import Explanation, explanations
from simulations.reporting.outcome import Outcome, Violation
from simulations.reporting.plots import escape, number, share_bar
from simulations.reporting.sequence_svg import draw_svg
from simulations.reporting.story import build_story

__all__ = ["explained_section", "judged_section", "nearby_section", "story_sections"]

_MAX_STORIES = 3


def story_sections(outcome: Outcome) -> list[str]:
    """Return a story with a diagram for the first violation of each invariant."""
    by_law: dict[str, Violation] = {}
    for violation in outcome.violations:
        by_law.setdefault(violation.property, violation)
    named = [each for each in by_law.values() if _names_a_key(outcome, each)]
    chosen = [*named, *(each for each in by_law.values() if each not in named)][:_MAX_STORIES]
    return [_story(outcome, violation) for violation in chosen]


def _names_a_key(outcome: Outcome, violation: Violation) -> bool:
    return any(each.is_judged and each.name in violation.text for each in outcome.histories)


def _story(outcome: Outcome, violation: Violation) -> str:
    story = build_story(outcome, violation)
    items = "".join(
        f'<li class="{step.kind}"><time>{step.at:.2f} s</time>{escape(step.text)}</li>'
        for step in story.steps
    )
    opening = f"<p>{escape(story.opening)}</p>" if story.opening else ""
    if story.left_out:
        opening += f'<p class="guide">{story.left_out} earlier steps are left out.</p>'
    return (
        f'<section class="violation-story"><h2>What led to {escape(violation.property)}</h2>'
        f'{opening}<div class="beside"><ol class="steps">{items}</ol>'
        f'<div class="wide">{draw_svg(story)}</div></div></section>'
    )


def nearby_section(outcome: Outcome) -> str:
    """Return the table of nearby runs; empty if there were none."""
    if not outcome.nearby:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{escape(each.change)}</th>'
        + (
            f'<td class="no">✗ {escape(", ".join(each.violated))}</td>'
            if each.violated
            else '<td class="yes">✓ all invariants held</td>'
        )
        + "</tr>"
        for each in outcome.nearby
    )
    needed = [each.change for each in outcome.nearby if not each.violated and each.is_smaller]
    text = (
        f"The violation disappears {' or '.join(needed)}."
        if needed
        else "No single fault is needed for the violation."
    )
    return (
        f"<section><h2>Nearby runs</h2><p>{escape(text)}</p>"
        f'<div class="wide"><table>{rows}</table></div></section>'
    )


def judged_section(outcome: Outcome) -> str:
    """Return what part of the decisions each law judged exactly, and why it excused others."""
    judged = outcome.judged
    if not judged.decisions:
        return ""
    laws = sorted(judged.exact_by_law.keys() | judged.excused_by_law.keys())
    rows = "".join(
        f'<tr><th scope="row">{escape(law)}</th><td>{judged.exact_by_law[law]:,}</td>'
        f"<td>{judged.excused_by_law[law]:,}</td></tr>"
        for law in laws
    )
    reasons = "".join(
        f"<li>{escape(reason)}: {count:,}</li>" for reason, count in judged.excuses.most_common()
    )
    why = f"<p>Reasons of the others, by decisions:</p><ul>{reasons}</ul>" if reasons else ""
    return (
        "<section><h2>What was judged</h2>"
        f"<p>{share_bar(judged.share)} of {judged.decisions:,} decisions were judged exactly.</p>"
        '<div class="beside"><table><thead><tr><th>invariant</th><td>judged exactly</td>'
        f"<td>excused</td></tr></thead><tbody>{rows}</tbody></table><div>{why}</div></div>"
        "</section>"
    )


def explained_section(outcome: Outcome) -> str:
    """Return figures that look like violations, with the reasons that allow them; empty if there
    are none, or if invariants were violated."""
    found = [] if outcome.violations else explanations(outcome)
    if not found:
        return ""
    return (
        '<section id="explained"><h2>Figures that have an explanation</h2>'
        f"{''.join(map(_explained, found))}</section>"
    )


def _explained(each: Explanation) -> str:
    bound = (
        f"the invariant <code>{escape(each.law)}</code> judges each key by the bound of that key"
        if each.bound is None
        else f"the invariant <code>{escape(each.law)}</code> allows {number(each.bound)}"
    )
    reasons = each.reasons or ("the invariant found no key above its bound",)
    items = "".join(f"<li>{escape(reason)}</li>" for reason in reasons)
    return f"<p><b>{number(each.value)}</b> {escape(each.figure)}; {bound}:</p><ul>{items}</ul>"
