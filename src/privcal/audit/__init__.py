"""The empirical audit: do the promises of privacy hold where one can look?"""

from privcal.audit.removals import Removals, audit_data
from privcal.audit.result import Audit
from privcal.audit.run import audit, names

__all__ = ["Audit", "Removals", "audit", "audit_data", "names"]
