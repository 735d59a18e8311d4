"""The model of the tests of pst.sample, and its draws by pm.sample."""

import pytest

from tests.sampling.runs import by_pymc, make_model


@pytest.fixture(scope="module")
def model():
    return make_model()


@pytest.fixture(scope="module")
def reference(model):
    return by_pymc(model)
