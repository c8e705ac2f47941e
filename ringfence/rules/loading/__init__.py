"""Loading of rules from YAML files or Python mappings; all mistakes are reported together."""
