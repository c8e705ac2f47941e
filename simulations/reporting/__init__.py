"""Results of a run: event history, figures and report page."""
