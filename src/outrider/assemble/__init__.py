"""The composition root: the only place that names concrete targets, stages and drafters."""
