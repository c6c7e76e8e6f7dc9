"""What a broker stores: topics, partition indexes over the journal, and the message store that owns both.

Read: topics (pure), index_file -> partition_index -> indexes, index_survey (pure), search, retention (pure) ->
retention_job, carrying_job -> checkpoint_taking, message_store.
"""
