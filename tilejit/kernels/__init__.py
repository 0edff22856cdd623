"""Ready kernels, written in the kernel language; tutorials and benchmarks use these very ones."""
