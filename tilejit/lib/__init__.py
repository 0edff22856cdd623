"""Reusable pieces written in the kernel language itself: call them inside ``@tile.jit`` kernels."""
