"""Judging: frames in, frozen dataclasses out; the only place that says what an outcome is."""
