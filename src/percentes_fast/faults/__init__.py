"""Measuring: arming, firing and undoing a fault."""
