"""Servers under test: the embedded one, and the supervisor of any other."""
