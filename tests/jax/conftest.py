"""Fixtures of the tests of JAX."""

import pytest


@pytest.fixture
def double_precision():
    jax = pytest.importorskip("jax")
    with jax.enable_x64(True):
        yield
