"""What `benchmarks.dirigo_simulated` is made of: workloads, experiments, and how they are shown."""
