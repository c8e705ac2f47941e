"""Configuration of a node: settings, rule files, keys, certificates and seeds."""
