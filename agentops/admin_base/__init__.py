"""What the administration pages of every app build on: bounded lists, scopes, forms that act."""
