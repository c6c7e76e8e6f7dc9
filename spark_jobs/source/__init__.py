"""A journal directory as a DataFrame of records."""
