"""The typed tile IR. ``ir.nodes`` says what it means; the other modules build, walk, print and
verify it."""
