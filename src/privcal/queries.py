"""The queries, under its public name."""

from privcal.trusted.queries import *  # noqa: F403
