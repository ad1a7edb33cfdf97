"""Side-by-side comparisons with peers, printed as ratios: `python -m benchmarks [name …]`."""

import os

# Threads of OpenMP that wait busily for more work would take the time of whoever comes next.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
