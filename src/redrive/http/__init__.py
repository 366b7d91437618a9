"""Outgoing HTTP requests to URLs that users wrote.

`ssrf` decides which URLs may be called and at which addresses; `client` connects to these addresses only.
"""
