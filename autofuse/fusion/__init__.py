"""Legal groups, rewrites, enumeration and cover."""
