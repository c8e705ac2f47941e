"""What a node reads at start and on reload: settings, rule files, keys, certificates, seeds."""
