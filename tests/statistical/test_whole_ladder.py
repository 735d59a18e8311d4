"""The scores of the session taken together; it comes last in the alphabet."""

import numpy as np
import pytest

from tests.statistical.ladder import limit

pytestmark = pytest.mark.statistical


def test_all_scores_together(book):
    """No score beyond the limit of them all, and their size is that of standard normals: errors are neither over- nor
    underestimated."""
    z = book.all_scores()
    if z.size < 200:
        pytest.skip("needs the other rungs in the same session")
    assert np.abs(z).max() < limit(z.size)
    assert 0.85 < np.sqrt(np.mean(z**2)) < 1.15
