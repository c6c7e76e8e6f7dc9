"""What a broker stores: topics, partition indexes over the journal, and the message store that owns both.

Read: topics (pure), index_file -> partition_index -> indexes, index_survey, search, retention -> retention_job,
carrying_job, disk_space -> checkpoint_taking, horizon (what is in memory), watermark_keeper -> message_store,
making_room -> far_read (what is not in memory), far_reads (the thread for it) -> window, key_block (pure), key_reading,
key_files, key_indexer.
"""
