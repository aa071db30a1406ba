"""Login: form, throttling, known browsers and sessions."""
