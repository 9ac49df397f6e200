"""What storing a message and reading a context cost, beside the drivers and the libraries for it."""
