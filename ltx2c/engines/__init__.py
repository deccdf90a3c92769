"""What carries a plan out: into a new file, into resident memory, or against a fused file to verify it."""
