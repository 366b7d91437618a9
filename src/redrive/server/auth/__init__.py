"""Authentication and accounts: passwords, API keys, signed tokens, sessions, administration."""
