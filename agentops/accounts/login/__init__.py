"""Login: form, throttling, hashes, second factor, OpenID, known browsers, sessions, and verified addresses."""
