"""Makes the OpenAPI schema that ships with the package: ``python -m scripts.openapi``, or ``make schema``."""
