"""Settings of the benchmarks."""
