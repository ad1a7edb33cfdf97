"""Names that kits, guards and jobs must agree on."""

from __future__ import annotations

SITE_EXECUTOR = "privcal.federation.executor.SiteExecutor"
RELAY = "privcal.federation.relay.Relay"
SITE_GUARD = "privcal.federation.guard.SiteGuard"
JOB_GUARD = "privcal.federation.guard.JobGuard"
JOBS = "privcal.federation.storage.WorkspaceJobs"
SNAPSHOTS = "privcal.federation.storage.WorkspaceSnapshots"
CALIBRATOR_ROLE = "lead"  # FLARE's name for those who may submit jobs
TASK = "privcal"
