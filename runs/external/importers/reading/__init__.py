"""What importers of finished conversations share: values with their places, messages, and the events made of them."""
