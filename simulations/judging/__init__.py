"""What must hold of a run, and what exact counting would have decided."""
