"""The compiled sampler. It works on arrays and addresses of compiled functions and does not depend on PyMC."""
