"""The version alone, so that a lower layer can name it without importing the package's public names."""

__version__ = "0.1.0"
