"""A Django project whose limits are the cluster's."""
