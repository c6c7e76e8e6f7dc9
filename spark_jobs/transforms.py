"""The audit's transforms, DataFrame to DataFrame, in one place. Pure: no file is read, nothing is collected.

*records* is what the data source gives (RecordRow); a finding is what findings.py says.
"""

from spark_jobs.checksums import frame_findings, life_findings, record_findings
from spark_jobs.findings import all_findings, mark_explained
from spark_jobs.offsets import offset_findings, offset_ranges
from spark_jobs.outcomes import branches, outcome_findings, take_findings
from spark_jobs.refold import branch_findings, partition_findings, position_findings

__all__ = [
    "all_findings",
    "branch_findings",
    "branches",
    "frame_findings",
    "life_findings",
    "mark_explained",
    "offset_findings",
    "offset_ranges",
    "outcome_findings",
    "partition_findings",
    "position_findings",
    "record_findings",
    "take_findings",
]
