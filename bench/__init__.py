"""Benchmarks: one module per question, each with ``main(argv) -> int``. Run them by ``python -m bench NAME``.

The package is called ``forkgym_bench`` in an installed wheel, hence relative imports only.
"""
