"""The endpoints: each validates, calls the memory, and answers."""
