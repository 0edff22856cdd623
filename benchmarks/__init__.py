"""Benchmarks: every peer in the same run, interleaved, checked first; results as JSON."""
