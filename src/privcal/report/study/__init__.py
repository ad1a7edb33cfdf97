"""A study as tables, figures and one HTML page."""
