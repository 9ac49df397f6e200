"""Compares storing a message and reading a context with the database drivers and with other libraries."""
