"""A recurrent network with an orthogonal matrix adds two numbers of a long sequence, with uncertainty.

The adding problem: 200 uniform numbers, two of which are marked; the network reads them one by one and has to give
the sum of the two, here observed with noise. Gradients that pass 200 products with an orthogonal matrix neither vanish
nor explode; this is the paper's motivation for orthogonal weights. ``python examples/recurrent.py`` trains the network
by momentum SGD on the manifold (Adam for the other parameters), samples its posterior by oSGHMC, and trains two
controls: an ordinary recurrent network, and the same network with an unconstrained matrix. Needs
``pip install "pymc-stiefel[jax]"``.
"""

# %%
from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure
from recording import finish, options_of, row
from training import Chain, cosine, orthogonality_error, pass_of, transformation_of

import pymc_stiefel as pst

UNITS = 64
NOISE = 0.1
BATCH = 100
NAMES = {"orthogonal": "orthogonal", "free": "same, matrix free", "ordinary": "ordinary (tanh)"}


# %%
def simulate(seed: int, n_sequences: int, length: int):
    """Sequences (number, mark), the sums of the two marked numbers, and observations of them."""
    keys = jax.random.split(jax.random.PRNGKey(seed), 4)
    numbers = jax.random.uniform(keys[0], (n_sequences, length), jnp.float32)
    first = jax.random.randint(keys[1], (n_sequences,), 0, length // 2)
    second = jax.random.randint(keys[2], (n_sequences,), length // 2, length)
    marks = jax.nn.one_hot(first, length, dtype=jnp.float32) + jax.nn.one_hot(second, length, dtype=jnp.float32)
    total = (numbers * marks).sum(axis=1)
    return jnp.stack([numbers, marks], axis=-1), total, total + NOISE * jax.random.normal(keys[3], total.shape)


def start(kind: str, seed: int) -> dict:
    """The orthogonal matrix starts near the identity, as Henaff et al. (2016) advise; an ordinary one is Gaussian."""
    keys = jax.random.split(jax.random.PRNGKey(seed), 3)
    normal = partial(jax.random.normal, dtype=jnp.float32)
    params = {"bias": jnp.zeros(UNITS, jnp.float32), "offset": jnp.zeros((), jnp.float32)}
    params["readout"] = 0.1 * normal(keys[0], (UNITS,)) / UNITS
    if kind == "ordinary":
        matrix = normal(keys[1], (UNITS, UNITS)) / UNITS**0.5
        return params | {"matrix": matrix, "inputs": normal(keys[2], (2, UNITS)) / 2**0.5}
    turn = 2e-4 * normal(keys[1], (UNITS, UNITS))
    matrix = jnp.linalg.qr(jnp.eye(UNITS, dtype=jnp.float32) + turn - turn.T)[0]
    matrix = matrix * jnp.sign(jnp.diagonal(matrix))
    params |= {"inputs": jax.random.uniform(keys[2], (2, UNITS), jnp.float32), "bias": params["bias"] - 1.0}
    return params | {"orthogonal" if kind == "orthogonal" else "matrix": matrix}


def network(kind: str, params: dict, x):
    """The answer after the last number: h W + relu(x U + b) at each, or tanh(h W + x U + b) of an ordinary network."""
    matrix = params["orthogonal" if kind == "orthogonal" else "matrix"]

    def step(h, now):
        put = now @ params["inputs"] + params["bias"]
        return (jnp.tanh(h @ matrix + put) if kind == "ordinary" else h @ matrix + jax.nn.relu(put)), None

    h, _ = jax.lax.scan(step, jnp.zeros((len(x), UNITS), jnp.float32), jnp.swapaxes(x, 0, 1))
    return h @ params["readout"] + params["offset"]


def loss_of(kind: str):
    """Minus the log likelihood of normal observations; flat priors."""
    return lambda params, x, y: 0.5 * jnp.mean((network(kind, params, x) - y) ** 2) / NOISE**2


# %%
def learn(kind: str, data, validation, epochs: int, seed: int) -> tuple[dict, list[float]]:
    """Parameters, and the mean squared error of the sum after every pass."""
    x, _, y = data
    params = start(kind, seed)
    steps = epochs * (len(x) // BATCH)
    adam = optax.chain(optax.clip_by_global_norm(1e6), optax.adam(optax.cosine_decay_schedule(0.003, steps)))
    parts = {"stiefel": pst.jax.momentum(cosine(3e-5, steps)), "free": adam}
    transformation = optax.partition(parts, {name: "stiefel" if name == "orthogonal" else "free" for name in params})
    epoch = pass_of(loss_of(kind), transformation, BATCH)
    chain = Chain(params, transformation.init(params), jax.random.PRNGKey(seed))
    predict = jax.jit(partial(network, kind))
    errors = [float(jnp.mean((predict(params, validation[0]) - validation[1]) ** 2))]
    for _ in range(epochs):
        chain, _ = epoch(chain, x, y)
        errors.append(float(jnp.mean((predict(chain.params, validation[0]) - validation[1]) ** 2)))
        print(f"{NAMES[kind]}: squared error {errors[-1]:.5f}", flush=True)
    return chain.params, errors


def sample(params: dict, data, members: int, spacing: int, seed: int) -> list[dict]:
    """Draws of the posterior by oSGHMC; the first fifth is discarded."""
    x, _, y = data
    transformation = transformation_of(params, 2e-5, free=10.0, seed=seed)
    some_steps = pass_of(loss_of("orthogonal"), transformation, BATCH)
    chain = Chain(jax.tree.map(jnp.array, params), transformation.init(params), jax.random.PRNGKey(1000 + seed))
    draws = []
    for _ in range(members + members // 4):
        chain, _ = some_steps(chain, x, y, spacing)
        draws.append(jax.tree.map(np.asarray, chain.params))
    return draws[members // 4 :]


# %%
def intervals_of(predictions: np.ndarray, total: np.ndarray) -> list[list[float]]:
    """Sum, and mean and 90 % interval of the prediction, for some sixty test sequences in the order of their sums."""
    some = np.argsort(total)[:: max(len(total) // 60, 1)]
    low, high = np.quantile(predictions[:, some], [0.05, 0.95], axis=0)
    return np.column_stack([total[some], predictions[:, some].mean(axis=0), low, high]).round(5).tolist()


def picture(curves: dict[str, list], intervals: list[list[float]]) -> Figure:
    figure = Figure(figsize=(9, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    for (kind, errors), style in zip(curves.items(), ("o-", "s-", "^-"), strict=True):
        left.plot(errors, style, ms=4, label=NAMES[kind])
    left.axhline(1 / 6, color="0.6", ls="--", label="always 1")
    left.set(yscale="log", xlabel="passes through the data", ylabel="mean squared error of the sum")
    figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=4, frameon=False)
    total, mean, low, high = np.transpose(intervals)
    right.vlines(total, low - total, high - total, color="C0", lw=1)
    right.plot(total, mean - total, ".", color="C0")
    right.axhline(0, color="0.6", lw=0.8)
    right.set(xlabel="sum", ylabel="prediction minus sum (mean, 90 % interval)")
    return figure


REMARKS = [
    "The networks have 64 units and are trained in batches of 100, in single precision, each with the same number of "
    "passes. The orthogonal matrix is trained by momentum SGD on the manifold, the other parameters by Adam. The "
    "observations have noise of standard deviation 0.1. Step sizes were chosen on separate sequences (seed 9), which "
    "are used neither for training nor for the table.",
    "The matrices start near the identity (Henaff, Szlam & LeCun 2016, arXiv:1602.06662), that of the ordinary "
    "network from a Gaussian. The chain starts at the optimum. Its steps are one fiftieth of a thousandth of a radian, "
    "because the matrix enters 200 products; it is short, so its intervals are rough.",
]


def main() -> None:
    parser = options_of(__doc__, "recurrent.png")
    parser.add_argument("--length", type=int, default=200, help="of the sequences")
    options = parser.parse_args()
    n_sequences, epochs, members, spacing = (4000, 4, 8, 20) if options.quick else (20_000, 5, 20, 100)
    data, test = simulate(100 + options.seed, n_sequences, options.length), simulate(200, 2000, options.length)
    learnt = {kind: learn(kind, data, test, epochs, options.seed) for kind in NAMES}
    draws = sample(learnt["orthogonal"][0], data, members, spacing, options.seed)
    predict = jax.jit(partial(network, "orthogonal"))
    predictions = np.array([predict(params, test[0]) for params in draws])
    total = np.asarray(test[1])
    low, high = np.quantile(predictions, [0.05, 0.95], axis=0)
    curves = {kind: errors for kind, (_, errors) in learnt.items()}
    rows = [row("squared error, always 1", f"{np.mean((total - 1) ** 2):.5f}")]
    rows += [row(f"squared error, {NAMES[kind]}", f"{errors[-1]:.5f}") for kind, errors in curves.items()]
    rows += [
        row("squared error, one draw", f"{np.mean((predictions - total) ** 2):.5f}"),
        row("squared error, mean of the posterior", f"{np.mean((predictions.mean(axis=0) - total) ** 2):.5f}"),
        row("posterior standard deviation", f"{predictions.std(axis=0).mean():.4f}", note="mean over test sequences"),
        row("sums within the 90 % interval", f"{100 * np.mean((low < total) & (total < high)):.0f} %"),
        row("orthogonality error", f"{orthogonality_error([draw['orthogonal'] for draw in draws]):.1e}"),
    ]
    data_name = f"simulated: {n_sequences} sequences of length {options.length}, 2000 for the test"
    drawn = {"curves": curves, "intervals": intervals_of(predictions, total)}
    figure, title = picture(**drawn), "Orthogonal recurrent network"
    finish(options, figure, title=title, data=data_name, rows=rows, remarks=REMARKS, drawn=drawn)


if __name__ == "__main__":
    main()
