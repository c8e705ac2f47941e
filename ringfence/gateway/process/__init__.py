"""The gateway as processes: settings, workers, tokens, certificates, metrics."""
