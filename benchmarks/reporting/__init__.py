"""Results of benchmarks: figures, their tables and plots, and a description of the machine."""
