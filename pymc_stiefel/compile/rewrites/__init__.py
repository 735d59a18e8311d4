"""Rewrites of PyTensor graphs that make compiled densities faster.

Each belongs upstream and can be deleted once it is there.
"""
