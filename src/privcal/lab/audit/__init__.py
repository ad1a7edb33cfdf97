"""The empirical audit: do the promises of privacy hold where one can look?"""

from privcal.lab.audit.run import Audit, Removals, audit, audit_data, names

__all__ = ["Audit", "Removals", "audit", "audit_data", "names"]
