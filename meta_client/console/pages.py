"""Every page by its path. Paths are stable."""

from typing import Final

from meta_client.console.groups_page import read_group_page, read_groups, read_letters
from meta_client.console.overview_page import read_journal, read_overview, read_replication
from meta_client.console.page import Page
from meta_client.console.reset_page import read_reset
from meta_client.console.topics_page import read_message, read_messages, read_topic_page, read_topics
from meta_client.console.transactions_page import (
    read_branch_page,
    read_diagnosis_page,
    read_transactions,
    read_verdict,
)

NAVIGATION: Final = (
    ("/", "Overview"),
    ("/transactions", "Transactions"),
    ("/topics", "Topics"),
    ("/groups", "Groups"),
    ("/dead-letters", "Dead letters"),
    ("/replication", "Replication"),
    ("/journal", "Journal"),
)

RESET: Final = Page("/groups/{group}/reset", "Reset", "reset.html", read_reset, section="/groups")
PAGES: Final = (
    Page("/", "Overview", "overview.html", read_overview, 5.0, "/"),
    Page("/transactions", "Transactions in doubt", "transactions.html", read_transactions, 5.0, "/transactions"),
    Page("/transactions/branch", "Branch", "branch.html", read_branch_page, 5.0, "/transactions"),
    Page("/transactions/verdict", "Verdict", "verdict.html", read_verdict, section="/transactions"),
    Page("/transactions/diagnosis", "Diagnosis", "diagnosis.html", read_diagnosis_page, section="/transactions"),
    Page("/topics", "Topics", "topics.html", read_topics, section="/topics"),
    Page("/topics/{topic}", "Topic", "topic.html", read_topic_page, 5.0, "/topics"),
    Page("/topics/{topic}/messages", "Messages", "messages.html", read_messages, section="/topics"),
    Page("/topics/{topic}/{partition}/{offset}", "Message", "message.html", read_message, section="/topics"),
    Page("/groups", "Groups", "groups.html", read_groups, 5.0, "/groups"),
    Page("/groups/{group}", "Group", "group.html", read_group_page, 2.0, "/groups"),
    RESET,
    Page("/dead-letters", "Dead letters", "letters.html", read_letters, section="/dead-letters"),
    Page("/replication", "Replication", "replication.html", read_replication, 2.0, "/replication"),
    Page("/journal", "Journal", "journal.html", read_journal, 5.0, "/journal"),
)
CHANGE: Final = Page("/transactions/change", "Confirm", "change.html", read_branch_page, section="/transactions")
