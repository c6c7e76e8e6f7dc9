"""Django over a test's database: settings of this process, and a view in an atomic request."""

import itertools
from collections.abc import Callable
from typing import Any

import django
import psycopg
import pymysql
from django.conf import settings
from django.db import connections
from django.http import HttpRequest, HttpResponse
from django.urls import path

from meta_client.transactions.mysql import parameters

_numbers = itertools.count(1)
view: list[Callable[[], None]] = []  # what a request does


def handle(request: HttpRequest) -> HttpResponse:
    view[-1]()
    return HttpResponse("done")


urlpatterns = [path("", handle)]


def use(place: str) -> str:
    """The alias of a new database of Django's: PostgreSQL where *place* is in libpq's words, MariaDB, MySQL, or an
    SQLite file."""
    if not settings.configured:
        settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], DATABASES={}, USE_TZ=True)
        django.setup()
    alias = f"shop_{next(_numbers)}"
    if place.startswith(("mariadb://", "mysql://")):
        pymysql.install_as_MySQLdb()
        how = parameters(place)
        database = {"ENGINE": "django.db.backends.mysql", "NAME": how["database"], "USER": how["user"]}
        database |= {"HOST": how["host"], "PORT": str(how["port"]), "PASSWORD": how["password"]}
    elif "=" in place:
        info: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(place)
        options = {"connect_timeout": 5}
        database = {"ENGINE": "django.db.backends.postgresql", "NAME": info["dbname"], "USER": info["user"]}
        database |= {"HOST": info["host"], "PORT": str(info["port"]), "PASSWORD": info["password"], "OPTIONS": options}
    else:
        database = {"ENGINE": "django.db.backends.sqlite3", "NAME": place.removeprefix("sqlite:///")}
    made = connections.configure_settings({"default": {}, alias: database | {"ATOMIC_REQUESTS": True}})
    connections.settings[alias] = made[alias]
    return alias
