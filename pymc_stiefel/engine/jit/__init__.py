"""Compilation with numba. Only this package uses private names of numba and llvmlite."""
