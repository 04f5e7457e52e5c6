"""telemetry of Outrider."""
