"""Encryption of payloads at rest."""
