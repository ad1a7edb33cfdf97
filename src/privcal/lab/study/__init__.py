"""Many simulated runs over a grid of settings: the paper's benchmark, and anybody's."""

from privcal.lab.study.run import run

__all__ = ["run"]
