"""Stories of violations in the terminal."""

from rich.console import Console
from rich.text import Text

from simulations.reporting.story import Story
from simulations.reporting.text_diagram import draw_text

__all__ = ["show_story"]


def show_story(screen: Console, story: Story) -> None:
    """Print the steps of a story, and below them the sequence diagram."""
    title, *lines = story.lines()
    screen.print(Text(f"\n{title}", style="bold red"))
    for line in lines:
        screen.print(Text(line))
    screen.print()
    for line in draw_text(story):
        screen.print(Text(line), soft_wrap=True)
    screen.print()
