"""Who is asking, and what that allows: passwords, keys, signed tokens, sessions."""
