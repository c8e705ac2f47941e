"""Certificates of nodes and of the cluster's certificate authority."""
