"""Code that all integrations share: the rate limit policy of an application, its execution by a
limiter, and settings.
"""
