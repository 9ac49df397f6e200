"""Compares the model calls and prompt tokens for summaries with those of other libraries that summarize."""
