"""Displays: a value that knows the numbers behind a picture, and draws it where one likes."""
