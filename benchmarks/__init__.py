"""Side-by-side comparisons with peers, printed as ratios: `python -m benchmarks [name …]`."""
