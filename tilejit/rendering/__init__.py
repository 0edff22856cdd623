"""Pages about kernels and errors, for notebooks and files.

Not here: pieces of HTML (``markup``), pictures of layouts (``pictures``), what a page shows (``runtime.variant``).
"""
