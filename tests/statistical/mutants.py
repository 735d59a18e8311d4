"""A small Hamiltonian sampler in plain NumPy whose parts can be replaced by wrong ones.

With its own parts it is right, which the tests check first; each mutant below differs from it in one place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from pymc_stiefel import geometry as geo


def canonical_drift(X, r, eps):
    return geo.cayley_drift(X, r, eps)


def accept_log_ratio(before, after):
    """Log of the probability of acceptance from the energies: H falls, the move is taken."""
    return before - after


def fixed_length(sampler, X, r, energy, eps, rng):
    """The paper's trajectory: a given number of leapfrogs, then an accept step."""
    X_new, r_new = X, r
    for k in range(sampler.n_steps):
        X_new, r_new = sampler.leapfrog(X_new, r_new, eps, first=k == 0)
    change = sampler.log_ratio(energy, sampler.energy(X_new, r_new))
    return X_new if np.log(rng.random()) < change else X


def no_u_turn(sampler, X, r, energy, eps, rng):
    """Multinomial no-U-turn by doubling, with every subtree checked: the turn does not depend on who began."""
    tree = sampler.leaf(X, r, energy)
    for depth in range(sampler.max_depth):
        forward = rng.random() < 0.5
        end = tree[1] if forward else tree[0]
        new, whole = sampler.subtree(end, eps if forward else -eps, depth, energy, rng)
        if not whole:
            break
        if np.log(rng.random()) < new[4] - tree[4]:
            tree = (*tree[:3], new[3], tree[4])
        tree = sampler.joined(tree, new) if forward else sampler.joined(new, tree, keep=tree[3])
        if turns(sampler, tree):
            break
    return tree[3]


def turns(sampler, tree):
    """A U-turn between the two ends: both velocities against the sum of the momenta."""
    (X_left, r_left), (X_right, r_right), rho = tree[:3]
    ends = (geo.velocity(X_left, r_left, sampler.c, sampler.w), geo.velocity(X_right, r_right, sampler.c, sampler.w))
    return min(np.sum(V * rho) for V in ends) <= 0


def until_it_turns(sampler, X, r, energy, eps, rng):
    """Mutant: leapfrogs until the trajectory comes back towards its start, then an accept step at the end.

    From the end the same rule would not lead back to the start.
    """
    X_new, r_new = X, r
    for _ in range(2**sampler.max_depth):
        X_new, r_new = sampler.leapfrog(X_new, r_new, eps)
        if np.sum((X_new - X) * geo.velocity(X_new, r_new, sampler.c, sampler.w)) < 0:
            break
    return X_new if np.log(rng.random()) < energy - sampler.energy(X_new, r_new) else X


@dataclass(frozen=True)
class PlainSampler:
    """Hamiltonian Monte Carlo on one Stiefel matrix, canonical metric."""

    log_density: Callable
    gradient: Callable
    p: int
    n_steps: int = 3
    max_depth: int = 5
    drift: Callable = canonical_drift
    momentum: Callable = geo.draw_momentum
    log_ratio: Callable = accept_log_ratio
    trajectory: Callable = fixed_length
    first_kick: float = 0.5

    @property
    def c(self):
        return geo.metric("canonical", self.p)[0]

    @property
    def w(self):
        return geo.metric("canonical", self.p)[1]

    def energy(self, X, r):
        return geo.kinetic_energy(X, r, self.c, self.w) - self.log_density(X)

    def leapfrog(self, X, r, eps, first=True):
        """Half kick, drift, half kick."""
        kick = self.first_kick if first else 0.5
        r = r + kick * eps * geo.tangent_project(X, self.gradient(X))
        X, r = self.drift(X, r, eps)
        return X, r + 0.5 * eps * geo.tangent_project(X, self.gradient(X))

    # A tree is (left end, right end, sum of momenta, proposal, log weight).

    def leaf(self, X, r, energy):
        return (X, r), (X, r), r, X, energy - self.energy(X, r)

    def joined(self, left, right, keep=None):
        keep = left[3] if keep is None else keep
        return left[0], right[1], left[2] + right[2], keep, np.logaddexp(left[4], right[4])

    def subtree(self, end, eps, depth, energy, rng):
        """``2**depth`` leapfrogs on from ``end``; whether it is free of U-turns."""
        if depth == 0:
            X, r = self.leapfrog(*end, eps)
            return self.leaf(X, r, energy), True
        near, whole = self.subtree(end, eps, depth - 1, energy, rng)
        if not whole:
            return near, False
        far, whole = self.subtree(near[1] if eps > 0 else near[0], eps, depth - 1, energy, rng)
        if not whole:
            return far, False
        keep = far[3] if np.log(rng.random()) < far[4] - np.logaddexp(near[4], far[4]) else near[3]
        tree = self.joined(near, far, keep) if eps > 0 else self.joined(far, near, keep)
        return tree, not turns(self, tree)

    def run(self, X, eps, draws, rng):
        """A chain of ``draws`` matrices, re-orthonormalised between trajectories."""
        kept = np.empty((draws, *X.shape))
        for k in range(draws):
            r = self.momentum(X, self.c, self.w, rng)
            X = geo.polar(self.trajectory(self, X, r, self.energy(X, r), eps, rng))
            kept[k] = X
        return kept


# ---------------------------------------------------------------- wrong parts


def embedded_noise(X, c, w, rng):
    """Momentum of the embedded inner product under the canonical energy."""
    return geo.tangent_project(X, rng.standard_normal(X.shape))


def paper_noise(X, c, w, rng):
    """Gaussian noise through the paper's map Z - X Z'X, which is not a projection."""
    noise = rng.standard_normal(X.shape)
    return noise - X @ noise.T @ X


def qr_drift(X, r, eps):
    """QR retraction, with the momentum projected at the new point."""
    Q, R = np.linalg.qr(X + eps * geo.velocity(X, r, *geo.metric("canonical", X.shape[1])))
    Q = Q * np.sign(np.diag(R))
    return Q, geo.tangent_project(Q, r)


def cayley_wrong_sign(X, r, eps):
    """Cayley with the sign of the vector transport turned round: X by (I - hW)^-1 (I + hW), r by its inverse."""
    W = geo.angular_momentum(X, r)
    I, h = np.eye(len(X)), eps / 2
    X_new = np.linalg.solve(I - h * W, X + h * W @ X)
    return X_new, geo.tangent_project(X_new, np.linalg.solve(I + h * W, r - h * W @ r))


def reversed_ratio(before, after):
    """The accept ratio as printed in the paper."""
    return after - before


MUTANTS = {
    "full instead of half first kick": {"first_kick": 1.0},
    "momentum of the embedded inner product": {"momentum": embedded_noise},
    "momentum by the paper's map": {"momentum": paper_noise},
    "QR retraction": {"drift": qr_drift},
    "reversed accept ratio": {"log_ratio": reversed_ratio},
    "Cayley with a wrong sign": {"drift": cayley_wrong_sign},
    "U-turn rule not symmetric in time": {"trajectory": until_it_turns},
}


def mutated(sampler, name):
    return replace(sampler, **MUTANTS[name])
