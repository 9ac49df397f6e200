"""What the API accepts and what it returns."""
