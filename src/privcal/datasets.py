"""The bundled logits, under its public name."""

from privcal.data.datasets import *  # noqa: F403
