"""The repositories: all SQL of the package, one module a table."""
