"""The compiled sampler. It knows arrays and addresses of compiled functions, nothing of PyMC."""
