"""The OpenAPI document of the API, its examples and its pages."""
