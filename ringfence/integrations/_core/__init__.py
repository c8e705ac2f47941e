"""Code that all integrations share: rate limit policy, its effects and their runner, and
settings.
"""
