"""How often a model is asked for a summary, and with how many tokens, beside the libraries that summarize as well."""
