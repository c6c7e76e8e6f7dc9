"""Lists what a restored database, or broker, has pulled apart, and the commands that mend it.

Read: apart (one transaction, as both sides have it), remedies (commands, and dead ends; both pure) -> reconcile (joins
the sides as a certificate does, and reads what is listed) -> text.
"""
