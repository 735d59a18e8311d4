"""What a draw reports, from one definition: compiled code writes the fields, step methods hand them on by name."""

from __future__ import annotations

import numpy as np

STATISTICS = np.dtype(
    [
        ("depth", "i8"),
        ("tree_size", "f8"),
        ("mean_tree_accept", "f8"),
        ("diverging", "?"),
        ("energy", "f8"),
        ("energy_error", "f8"),
        ("max_energy_error", "f8"),
        ("model_logp", "f8"),
        ("index_in_trajectory", "i8"),
        ("reached_max_treedepth", "?"),
        ("orthogonality_error", "f8"),
        ("reflected", "?"),  # an accepted change of sign
        ("step_size", "f8"),
        ("step_size_bar", "f8"),
        ("gradients", "i8"),  # all of them, with those spent on searches before the draw
        ("mass_change", "f8"),  # of logarithms, see ``Settling``; NaN where masses are not learnt
    ],
    align=True,
)
NAMES: tuple[str, ...] = STATISTICS.names or ()
