"""Architectures, one file each; a file's `FAMILIES` make it known to both formats."""
