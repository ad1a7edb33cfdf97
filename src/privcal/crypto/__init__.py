"""What is signed and sealed, and in what spelling: the same at a site, a calibrator, in a file.

`sealing` and `signatures` need the package cryptography, which the base install does not bring.
"""
