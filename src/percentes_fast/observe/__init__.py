"""Measuring: what is watched beside the load while a run is under way."""
