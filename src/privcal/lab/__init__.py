"""The laboratory: the paper's study, from images to logits, and attacks on our own promises."""
