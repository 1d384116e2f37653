"""Measuring: schedule, payload, slabs, workers."""
