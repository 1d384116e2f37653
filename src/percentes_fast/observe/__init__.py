"""Measuring: what is read beside the load."""
