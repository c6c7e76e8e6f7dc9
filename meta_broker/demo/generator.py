"""Made-up orders in the layout of the real ones: same seed, same bytes. Pure except `write_orders`."""

import csv
import random
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from meta_broker.demo.orders import COLUMNS

INVOICES = 600
NUMBER_FIRST = 600_001
CANCELLED_SHARE = 0.08
UNKNOWN_CUSTOMER_SHARE = 0.25
LINES_MEAN, LINES_MAX = 12, 120  # exponentially distributed: many small invoices, a few long ones

# Roughly as in the real data: one country dominates, others occur a few times.
COUNTRIES = {"United Kingdom": 900, "Germany": 30, "France": 30, "EIRE": 20, "Norway": 5, "Portugal": 5, "Japan": 4}
COUNTRIES |= {"Spain": 4, "Netherlands": 4, "Italy": 3, "Australia": 2, "Iceland": 1}
ADJECTIVES = ("WHITE", "RED", "SMALL", "VINTAGE", "HANGING", "GLASS", "PINK, SPOTTED", 'SET OF "6"', "WOODEN", "")
NOUNS = ("LANTERN", "MUG", "CLOCK", "LUNCH BOX", "CAKE STAND", "DOORMAT", "T-LIGHT HOLDER", "NAPKINS", "BIRD TABLE")
PENCE = (0, 42, 85, 125, 165, 210, 255, 295, 339, 495, 895, 1275)


def rows(invoices: int, seed: int) -> Iterator[list[str]]:
    """Yield the rows of a file of *invoices* invoices, header first."""
    dice = random.Random(seed)  # noqa: S311 - must be repeatable
    yield list(COLUMNS)
    goods = [
        (
            f"{dice.randrange(20_000, 90_000)}{dice.choice(('', '', '', 'A', 'B'))}",
            f"{dice.choice(ADJECTIVES)} {dice.choice(NOUNS)}".strip(),
            f"{(pence := dice.choice(PENCE)) // 100}.{pence % 100:02d}",
        )
        for _ in range(300)
    ]
    dated = datetime(2011, 1, 4, 8, 0)
    for number in range(NUMBER_FIRST, NUMBER_FIRST + invoices):
        dated += timedelta(minutes=dice.randrange(1, 9))
        is_cancelled = dice.random() < CANCELLED_SHARE
        customer = "" if dice.random() < UNKNOWN_CUSTOMER_SHARE else f"{dice.randrange(12_346, 18_288)}.0"
        (country,) = dice.choices(list(COUNTRIES), list(COUNTRIES.values()))
        lines = min(LINES_MAX, 1 + int(dice.expovariate(1 / LINES_MEAN)))
        for code, description, price in dice.choices(goods, k=lines):
            quantity = dice.choice((1, 1, 2, 3, 4, 6, 8, 12, 24, 48)) * (-1 if is_cancelled else 1)
            name = f"C{number}" if is_cancelled else str(number)
            yield [name, code, description, str(quantity), str(dated), price, customer, country]


def write_orders(path: Path, invoices: int, seed: int) -> None:
    with path.open("x", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows(invoices, seed))
