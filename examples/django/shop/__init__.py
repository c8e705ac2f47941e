"""A Django project with the limits of a cluster."""
