"""The demo's tables, and the statements that its two kinds of process share. Pure: SQL as text.

The producers write `invoices` and `lines`; the consumers `revenue`, `orphans` and the offset store's table. One
database is enough for both: nothing here reads across.
"""

from typing import Final

TABLES: Final = """
CREATE TABLE invoices (number text PRIMARY KEY, dated timestamp NOT NULL, customer text, country text NOT NULL);
CREATE TABLE lines (
    invoice text NOT NULL REFERENCES invoices, line int NOT NULL, stock_code text NOT NULL, description text NOT NULL,
    quantity int NOT NULL, price numeric(11, 4) NOT NULL, PRIMARY KEY (invoice, line)
);
CREATE TABLE revenue (country text PRIMARY KEY, lines bigint NOT NULL, amount numeric(20, 4) NOT NULL);
-- Invoices whose message was seen before their row. There must be none.
CREATE TABLE orphans (invoice text PRIMARY KEY);
"""

INSERT_INVOICE: Final = "INSERT INTO invoices VALUES (%s, %s, %s, %s)"
INSERT_LINE: Final = "INSERT INTO lines VALUES (%s, %s, %s, %s, %s, %s)"
INVOICE_NUMBERS: Final = "SELECT number FROM invoices"

ADD_REVENUE: Final = """
INSERT INTO revenue VALUES (%s, %s, %s)
ON CONFLICT (country) DO UPDATE SET lines = revenue.lines + EXCLUDED.lines, amount = revenue.amount + EXCLUDED.amount
"""
ADD_ORPHANS: Final = """
INSERT INTO orphans SELECT number FROM unnest(%s::text[]) AS seen(number)
WHERE NOT EXISTS (SELECT FROM invoices WHERE invoices.number = seen.number) ON CONFLICT DO NOTHING
"""

PROGRESS: Final = """
SELECT (SELECT count(*) FROM invoices)::int, (SELECT coalesce(sum(lines), 0) FROM revenue)::int
"""
LEDGER: Final = """
SELECT number, country, count(line)::int, coalesce(sum(quantity * price), 0)
FROM invoices LEFT JOIN lines ON invoice = number GROUP BY number
"""
REVENUE: Final = "SELECT country, lines::int, amount FROM revenue"
ORPHANS: Final = "SELECT invoice FROM orphans ORDER BY invoice"
IN_DOUBT: Final = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY gid"
