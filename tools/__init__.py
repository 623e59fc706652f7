"""Tools for the maintainers of this package: nothing here is installed."""
