"""The audit's transforms, DataFrame to DataFrame, in one place. Pure: reads no file, collects nothing.

*records* comes from the data source (RecordRow); findings are those of findings.py.
"""

from spark_jobs.audit.checkpoint_check import branch_findings, partition_findings, position_findings
from spark_jobs.audit.checksums import frame_findings, life_findings, record_findings
from spark_jobs.audit.findings import all_findings, mark_explained
from spark_jobs.audit.identity_check import batch_findings, id_findings
from spark_jobs.audit.index_check import index_findings
from spark_jobs.audit.offset_check import offset_findings, offset_ranges, skips
from spark_jobs.audit.relocation_check import commit_sum_findings, commit_sums, confirmed, relocated_branch_findings
from spark_jobs.audit.transaction_check import assignment_findings, branches, outcome_findings

__all__ = [
    "all_findings",
    "assignment_findings",
    "batch_findings",
    "branch_findings",
    "branches",
    "commit_sum_findings",
    "commit_sums",
    "confirmed",
    "frame_findings",
    "id_findings",
    "index_findings",
    "life_findings",
    "mark_explained",
    "offset_findings",
    "offset_ranges",
    "outcome_findings",
    "partition_findings",
    "position_findings",
    "record_findings",
    "relocated_branch_findings",
    "skips",
]
