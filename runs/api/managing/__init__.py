"""Projects, their members and their API keys in the API. Only signed-in people may manage; no API key may."""
