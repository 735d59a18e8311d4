"""Options of the ladder, the record of scores, and the table made from it."""

import time
from pathlib import Path

import pytest

from tests.statistical.ladder import Book
from tests.statistical.table import write_table

BOOK = pytest.StashKey[Book]()


def pytest_addoption(parser):
    group = parser.getgroup("exactness ladder")
    group.addoption("--ladder", choices=["full", "quick"], default="full", help="size of the statistical tests")
    group.addoption("--exactness-table", metavar="FILE", help="write the table of scores, e.g. docs/exactness.md")


def pytest_configure(config):
    config.stash[BOOK] = Book(full=config.getoption("--ladder", "full") == "full")
    config.stash[STARTED] = time.perf_counter()


STARTED = pytest.StashKey[float]()


@pytest.fixture(scope="session")
def book(request):
    """The scores of this session."""
    return request.config.stash[BOOK]


@pytest.fixture(scope="session")
def full(book):
    """Whether this is the full ladder."""
    return book.full


def pytest_sessionfinish(session, exitstatus):
    path = session.config.getoption("--exactness-table", None)
    if path and not session.config.getoption("collectonly"):
        minutes = (time.perf_counter() - session.config.stash[STARTED]) / 60
        write_table(Path(path), session.config.stash[BOOK], minutes, int(exitstatus))
