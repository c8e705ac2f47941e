"""Code that all integrations share: policy, effects and their runner, settings and their checks."""
