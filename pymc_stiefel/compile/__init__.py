"""From a PyMC model to the compiled log density that the engine calls."""
