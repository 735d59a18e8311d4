"""Speed beside that of peers: ``python -m benchmarks``. Nothing here is part of the installed package."""
