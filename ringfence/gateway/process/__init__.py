"""Gateway processes: settings, supervisor, workers, tokens, certificates and metrics."""
