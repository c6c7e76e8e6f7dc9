"""Schedules of recurring jobs: an interval in seconds, or a cron expression. Pure."""

import datetime

from cronsim import CronSim, CronSimError


class Schedule:
    """Schedule from *when*: seconds, or a cron expression of five fields, in UTC. Raises ValueError with the reason."""

    def __init__(self, when: float | str) -> None:
        self._when = when
        if isinstance(when, str):
            try:
                next(CronSim(when, datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)))
            except CronSimError as error:
                raise ValueError(f"{when!r} is no cron expression ({error}): use one like '30 3 * * *'") from error
            except StopIteration:
                raise ValueError(f"{when!r} never comes: no month has such a day") from None

    def first_s(self, now: datetime.datetime) -> float:
        """Return the seconds from a start at *now* to the first run: 0, unless it is a cron expression."""
        return self.next_s(now) if isinstance(self._when, str) else 0.0

    def next_s(self, now: datetime.datetime) -> float:
        """Return the seconds from *now*, which has a time zone, to the next run."""
        if not isinstance(self._when, str):
            return self._when
        utc = now.astimezone(datetime.UTC)
        return (next(CronSim(self._when, utc)) - utc).total_seconds()
