"""Storage of a broker: topics, partition indexes over the journal, and the message store that owns both.

Read: topics (pure), index_layout, index_file, index_writing -> partition_index -> indexes, index_survey, search,
archived_index, archive_view, archive_cache -> archive_tier -> retention -> retention_job, relocation_job, disk_space ->
checkpoint_taking, checkpoint_job, watermark_keeper -> message_store, start_on_full_disk -> cold_read, cold_reader (its
thread) -> key_block (pure), key_reading, key_files, key_indexer.
"""
