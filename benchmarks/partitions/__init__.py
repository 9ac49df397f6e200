"""Measures append and load on a table of messages with partitions and without, and the conversion of one."""
