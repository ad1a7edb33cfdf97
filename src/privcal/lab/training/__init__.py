"""From images to logits: networks, recipes, training. Needs the extra `train` (torch)."""
