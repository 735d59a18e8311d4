"""The model of the tests of step methods."""

import pytest

from tests.models import ppca, ppca_data


@pytest.fixture(scope="module")
def model():
    return ppca(ppca_data())
