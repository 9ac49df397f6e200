"""Measures append and load while a conversation, the tables and the number of concurrent conversations grow."""
