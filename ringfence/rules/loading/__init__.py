"""Reading of rules from YAML files or Python mappings, with all mistakes reported at once."""
