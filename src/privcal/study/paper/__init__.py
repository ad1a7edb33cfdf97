"""Luo et al. 2020: what they report, and their claims checked against a study."""
