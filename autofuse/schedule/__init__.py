"""Axis roles, search-space files, constraints and sampling."""
