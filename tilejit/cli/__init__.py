"""The command line: ``python -m tilejit``, or ``tilejit`` where it is installed.

One module per command; ``main`` names them. Each prints plain text, or one JSON document with ``--json``,
and gives its exit code: 0 all right, 1 faults found, 2 wrong use.
"""
