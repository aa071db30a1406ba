"""Login: form, throttling, hashes, known browsers, sessions, and the verified addresses of users."""
