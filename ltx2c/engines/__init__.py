"""What carries a plan out: into a file, into memory, or against a fused file."""
