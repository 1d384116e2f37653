"""Judging: the Summary as text, figures and one page; computes nothing."""
