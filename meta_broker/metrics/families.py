"""Every metric of a broker. docs/operations/metrics.md has the same table, which a test compares."""

from typing import Final

from meta_client.admin.families import Family, MetricKind

C, G, H = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM

# -- the process ----------------------------------------------------------------------------------------------

BROKER: Final = Family(
    "metaq_broker_info", MetricKind.INFO, "Version, cluster, broker id, role; of a slave its number."
)
READY: Final = Family("metaq_broker_ready", G, "1 if /health/ready would answer 200.")
REGISTERED: Final = Family("metaq_broker_registered", G, "1 if registered in ZooKeeper; absent while that is away.")
LOOP_DELAY: Final = Family(
    "metaq_event_loop_delay_seconds", H, "How late a timer of the event loop was, sampled each 10 ms, 50 while idle."
)
CONNECTIONS: Final = Family("metaq_connections", G, "Open connections of clients.")
CONNECTIONS_LIMIT: Final = Family("metaq_connections_limit", G, "Connections above which new ones are refused.")
CONNECTIONS_REFUSED: Final = Family("metaq_connections_refused_total", C, "Connections refused at the limit.")
CERTIFICATE: Final = Family(
    "metaq_certificate_remaining_seconds", G, "Time until the certificate of the ports ends; absent without TLS."
)
QUOTA_THROTTLED: Final = Family(
    "metaq_quota_throttled_seconds_total",
    C,
    "Time that connections have waited for their quota, added up; the principal `-` stands for all addresses.",
    ("principal", "limit"),
)
QUOTA_REFUSED: Final = Family(
    "metaq_quota_refused_total", C, "Requests, branches and connections refused by a quota.", ("principal", "limit")
)
RECEIVED_BYTES: Final = Family("metaq_requests_incomplete_bytes", G, "Memory of requests that are not all here yet.")
UNSENT_BYTES: Final = Family("metaq_answers_unsent_bytes", G, "Memory of answers that clients have not taken.")
ANSWERS_WAITING: Final = Family("metaq_answers_waiting", G, "Answers and publications that wait to be acknowledged.")
FETCHES_WAITING: Final = Family("metaq_fetches_waiting", G, "Long polls that wait for messages.")

# -- requests and topics --------------------------------------------------------------------------------------

REQUEST_SECONDS: Final = Family(
    "metaq_request_duration_seconds", H, "From the begin of a request's handling to its answer.", ("verb",)
)
PUTS_FAILED: Final = Family("metaq_puts_refused_total", C, "Puts that were refused.")
GETS_MISSED: Final = Family("metaq_gets_missed_total", C, "Gets and fetches that got no message.")
UNREADABLE: Final = Family("metaq_reads_unreadable_total", C, "Reads that the disk did not return.")
MESSAGES_IN: Final = Family(
    "metaq_topic_messages_in_total", C, "Messages put, also by transactions that roll back.", ("topic",)
)
BYTES_IN: Final = Family("metaq_topic_bytes_in_total", C, "The same in bytes, headers included.", ("topic",))
MESSAGES_OUT: Final = Family(
    "metaq_topic_messages_out_total", C, "Messages in answers, those put together with the last of them.", ("topic",)
)
BYTES_OUT: Final = Family("metaq_topic_bytes_out_total", C, "Bytes of messages in answers.", ("topic",))
PARTITIONS: Final = Family("metaq_topic_partitions", G, "Partitions that hold or held messages.", ("topic",))
TOPIC_BYTES: Final = Family("metaq_topic_size_bytes", G, "Bytes between start and end of the partitions.", ("topic",))
INDEXES_REBUILDING: Final = Family("metaq_indexes_rebuilding", G, "Damaged partition indexes not rebuilt yet.")

# -- the journal ----------------------------------------------------------------------------------------------

QUEUED_BYTES: Final = Family("metaq_journal_queued_bytes", G, "Appended, and not handed to the system.")
BATCH_BYTES: Final = Family("metaq_journal_batch_bytes", H, "Size of what one group commit writes.")
FSYNC_SECONDS: Final = Family("metaq_journal_fsync_duration_seconds", H, "Duration of an fsync of the journal.")
SEGMENTS: Final = Family("metaq_journal_segments", G, "Segment files.")
JOURNAL_BYTES: Final = Family("metaq_journal_size_bytes", G, "Bytes between start and end of the journal.")
END_LSN: Final = Family("metaq_journal_end_lsn", G, "LSN of the next record.")
DURABLE_LSN: Final = Family("metaq_journal_durable_lsn", G, "LSN below which everything is fsynced here.")
HIGH_WATERMARK: Final = Family("metaq_journal_high_watermark_lsn", G, "LSN below which everything is acknowledged.")
CHECKPOINT_AGE: Final = Family("metaq_checkpoint_age_seconds", G, "Age of the newest checkpoint.")
REPLAY_BYTES: Final = Family("metaq_replay_bytes", G, "Journal behind the newest checkpoint: what a start replays.")
CHECKPOINT_SECONDS: Final = Family("metaq_checkpoint_interval_seconds", G, "checkpoint_seconds of [broker].")
CHECKPOINT_BYTES: Final = Family("metaq_checkpoint_interval_bytes", G, "checkpoint_bytes of [broker].")
DISK_FREE: Final = Family("metaq_disk_free_bytes", G, "Free bytes of the file system of --data.")
DISK_SIZE: Final = Family("metaq_disk_size_bytes", G, "All bytes of that file system.")
DISK_FREE_MIN: Final = Family("metaq_disk_free_min_bytes", G, "The watermark, disk_free_bytes_min; 0: there is none.")
DISK_FULL: Final = Family(
    "metaq_disk_full", G, "1 while the disk is full or low: a master refuses messages, a copy waits."
)

# -- the archive, if consumers read it ------------------------------------------------------------------------

ARCHIVE_READS: Final = Family("metaq_archive_reads_total", C, "Gets and fetches of messages in the archive.")
ARCHIVE_HITS: Final = Family("metaq_archive_cache_hits_total", C, "Times a file of the archive was in the cache.")
ARCHIVE_DOWNLOADS: Final = Family("metaq_archive_downloads_total", C, "Files read from the archive.")
ARCHIVE_FAILURES: Final = Family("metaq_archive_downloads_failed_total", C, "Files that could not be read from there.")
ARCHIVE_BYTES: Final = Family("metaq_archive_downloaded_bytes_total", C, "Bytes of the files read from there.")
ARCHIVE_CACHE: Final = Family("metaq_archive_cache_bytes", G, "Bytes of the cache, downloads under way included.")
ARCHIVE_CACHE_MAX: Final = Family("metaq_archive_cache_max_bytes", G, "archive_cache_bytes of [retention].")

# -- transactions ---------------------------------------------------------------------------------------------

BRANCHES: Final = Family("metaq_branches_live", G, "Branches that are not over, local ones included.")
BRANCH_BYTES: Final = Family("metaq_branches_accounted_bytes", G, "Their messages, as transaction_bytes_max counts.")
IN_DOUBT: Final = Family("metaq_branches_in_doubt", G, "Prepared branches without an outcome.")
IN_DOUBT_AGE: Final = Family(
    "metaq_branches_in_doubt_oldest_age_seconds", G, "Time since the oldest of them was prepared; absent without one."
)
BEGUN: Final = Family("metaq_branches_begun_total", C, "Branches begun.", ("kind",))
ENDED: Final = Family("metaq_branches_ended_total", C, "Branches ended, also by timeouts and operators.", ("outcome",))
HEURISTICS: Final = Family("metaq_heuristic_decisions", G, "Operators' decisions that nobody has forgotten.")
FINDINGS: Final = Family("metaq_ledger_findings", G, "Transactions on record that did not end alike.")

# -- replication ----------------------------------------------------------------------------------------------

IN_SYNC: Final = Family("metaq_in_sync_replicas", G, "Slaves in sync, on a master.")
IN_SYNC_MIN: Final = Family("metaq_in_sync_replicas_min", G, "in_sync_min of a master in mode sync.")
REFUSING: Final = Family("metaq_replication_refusing", G, "1 while a master in mode sync refuses writes.")
UNREPLICATED: Final = Family("metaq_unreplicated_bytes", G, "Durable on a master in mode sync, not acknowledged.")
REPLICA_CONNECTED: Final = Family("metaq_replica_connected", G, "1 if the slave has a link.", ("slave",))
REPLICA_IN_SYNC: Final = Family("metaq_replica_in_sync", G, "1 if the slave is in sync.", ("slave",))
REPLICA_LAG_BYTES: Final = Family(
    "metaq_replica_lag_bytes", G, "Journal that the slave has not fsynced; absent until it reports.", ("slave",)
)
REPLICA_LAG_SECONDS: Final = Family(
    "metaq_replica_lag_seconds", G, "Time since the slave had everything; absent until it reports.", ("slave",)
)
SLAVE_LAG_BYTES: Final = Family(
    "metaq_slave_lag_bytes", G, "On a slave: what its copy does not show yet; absent while its master is silent."
)
SLAVE_HEARTBEAT: Final = Family("metaq_slave_heartbeat_age_seconds", G, "On a slave: time since its master spoke.")
SLAVE_IN_SYNC: Final = Family(
    "metaq_slave_in_sync", G, "On a slave: 1 if its master says that it is in sync; absent while that is silent."
)

FAMILIES: Final = tuple(value for value in list(globals().values()) if isinstance(value, Family))
