"""What the keeper of the certificate authority runs: commands that make, renew and revoke kits.

They have the authority's key, and no network. No process of a site, the server or a calibrator
imports them.
"""
