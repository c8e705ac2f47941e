"""Integrations of Ringfence into web frameworks and libraries.

There is one module for each framework. It imports only the framework and the client, and has its
own extra for installation. All web frameworks share the code in `_core.policy`, so settings have
the same meaning in each.
"""
