"""What a run leaves behind: its history, figures and report page."""
